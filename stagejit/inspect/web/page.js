// Searches and folds the views of a document that no script has seen yet. No ids, no network, and
// nothing that other outputs of a notebook could meet but the class names, which begin with "sj-".
(() => {
  const wordsOf = (text) => text.toLowerCase().split(/\s+/).filter(Boolean);

  // Ranges of text in which a word was found; browsers without the API show hits by their class.
  const shown = () => {
    if (!window.CSS || !CSS.highlights || !window.Highlight) return null;
    if (!CSS.highlights.has("sj-found")) CSS.highlights.set("sj-found", new Highlight());
    return CSS.highlights.get("sj-found");
  };

  const rangesIn = (item, words) => {
    const found = [];
    const walker = document.createTreeWalker(item, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      if (node.parentElement.closest(".sj-item") !== item) continue;
      const text = node.data.toLowerCase();
      for (const word of words) {
        for (let at = text.indexOf(word); at >= 0; at = text.indexOf(word, at + word.length)) {
          const range = new Range();
          range.setStart(node, at);
          range.setEnd(node, at + word.length);
          found.push(range);
        }
      }
    }
    return found;
  };

  const prepare = (view) => {
    const bar = view.querySelector(".sj-bar");
    const box = view.querySelector(".sj-search");
    const count = view.querySelector(".sj-count");
    const items = [...view.querySelectorAll(".sj-item")];
    const groups = [...view.querySelectorAll(".sj-group")];
    const folds = [...view.querySelectorAll("details.sj-fold")];
    const texts = new Map(items.map((item) => {
      const context = item.closest("[data-sj-context]");
      const more = context ? context.dataset.sjContext : "";
      return [item, (item.textContent + " " + more).toLowerCase()];
    }));
    let before = null; // which folds were open before the search
    let marks = [];

    const search = () => {
      const words = wordsOf(box.value);
      const highlight = shown();
      if (highlight) marks.forEach((range) => highlight.delete(range));
      marks = [];
      if (words.length && !before) before = folds.map((fold) => fold.open);
      let hits = 0;
      for (const item of items) {
        const hit = words.every((word) => texts.get(item).includes(word));
        item.classList.toggle("sj-out", words.length > 0 && !hit);
        item.classList.toggle("sj-hit", words.length > 0 && hit);
        hits += hit;
        if (words.length && hit && highlight && hits <= 500) marks.push(...rangesIn(item, words));
      }
      for (const group of groups) {
        const some = !words.length || group.querySelector(".sj-hit");
        group.classList.toggle("sj-out", !some);
      }
      if (words.length) {
        folds.forEach((fold) => { fold.open = fold.querySelector(".sj-hit") !== null; });
      } else if (before) {
        folds.forEach((fold, at) => { fold.open = before[at]; });
        before = null;
      }
      if (highlight) marks.forEach((range) => highlight.add(range));
      view.classList.toggle("sj-searching", words.length > 0);
      count.textContent = words.length ? `${hits} of ${items.length}` : "";
      next = 0;
    };

    let next = 0; // the hit that Enter shows next
    const show = () => {
      const seen = items.filter((item) =>
        item.classList.contains("sj-hit") && item.getClientRects().length);
      if (!seen.length) return;
      seen[next % seen.length].scrollIntoView({ block: "center", inline: "center" });
      next += 1;
    };

    let pending = 0;
    box.addEventListener("input", () => {
      clearTimeout(pending);
      pending = setTimeout(search, items.length > 1000 ? 150 : 0);
    });
    // Notebooks take keys for commands; those of the search box are its own.
    box.addEventListener("keydown", (event) => {
      event.stopPropagation();
      if (event.key === "Escape") { box.value = ""; search(); }
      if (event.key === "Enter") { event.preventDefault(); show(); }
    });
    for (const button of view.querySelectorAll(".sj-button[data-sj-open]")) {
      button.hidden = !folds.length;
      button.addEventListener("click", () => {
        folds.forEach((fold) => { fold.open = button.dataset.sjOpen === "all"; });
      });
    }
    bar.hidden = !items.length && !folds.length;
    view.dataset.sjReady = "";
  };

  document.querySelectorAll(".sj-view:not([data-sj-ready])").forEach(prepare);
})();
