"""The colours of everything that is shown, in light and in dark.

Input: none. Output: CSS that gives each colour a variable, `--sj-NAME`. Invariant: a view is dark
where its surroundings say that they are (JupyterLab, VS Code, Colab, Sphinx), light where these say
so, and otherwise as the reader's system wants it; text has a contrast of 4.5 and more on `paper`
and on `raised`, lines and fills one of 3.
"""

from __future__ import annotations

# For each name the colour in light and the one in dark.
COLORS: dict[str, tuple[str, str]] = {
    "paper": ("#ffffff", "#16181d"),  # behind everything
    "raised": ("#f4f5f7", "#20242b"),  # heads of tables, boxes
    "ink": ("#1b1f24", "#e6e8eb"),  # text
    "soft": ("#59636e", "#9da7b3"),  # text of less weight
    "line": ("#d0d7de", "#3a414a"),  # rules between things
    "edge": ("#7d8590", "#6e7781"),  # arrows
    "accent": ("#0a5dc2", "#6cb0ff"),  # links, what a search finds
    "good": ("#1a7f37", "#4ac26b"),  # added, applied
    "bad": ("#c6282e", "#ff8078"),  # removed, what is waited for
    "warn": ("#8f5a00", "#e0a93b"),  # changed, declined
    "blue": ("#2f6fd0", "#5b9bf3"),  # kinds of things, to be told apart
    "orange": ("#bc5a0a", "#e88b3c"),
    "green": ("#2a8050", "#4fb382"),
    "violet": ("#7d4cc4", "#ac86ea"),
    "teal": ("#0f7c8a", "#3fb3c2"),
    "pink": ("#b83a7c", "#e57bb0"),
    "gray": ("#6b7580", "#8d97a3"),
}

_LIGHT_AROUND = (
    '[data-jp-theme-light="true"]',
    ".vscode-light",
    '[data-theme="light"]',
    '[theme="light"]',
)
_DARK_AROUND = (
    '[data-jp-theme-light="false"]',
    ".vscode-dark",
    ".vscode-high-contrast:not(.vscode-high-contrast-light)",
    '[data-theme="dark"]',
    '[theme="dark"]',
)


def theme_css(root: str = ".sj-view") -> str:
    """The variables, for elements that the selector `root` finds."""
    light, dark = (_variables(number) for number in range(2))

    def within(places: tuple[str, ...]) -> str:
        return ", ".join(f"{place} {root}" for place in places)

    return "\n".join(
        [
            f"{root} {{ color-scheme: light; {light} }}",
            f"@media (prefers-color-scheme: dark) {{ {root} {{ color-scheme: dark; {dark} }} }}",
            f"{within(_LIGHT_AROUND)} {{ color-scheme: light; {light} }}",
            f"{within(_DARK_AROUND)} {{ color-scheme: dark; {dark} }}",
        ]
    )


def _variables(number: int) -> str:
    return " ".join(f"--sj-{name}: {pair[number]};" for name, pair in COLORS.items())
