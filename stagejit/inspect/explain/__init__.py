"""`explain`: every decision of a compilation, and what came of it, by the user's source line.

schedule, kernels --collect--> Facts --lines--> Blocks --text, web, data--> str, HTML, JSON
"""

from stagejit.inspect.explain.explanation import Explanation

__all__ = ["Explanation"]
