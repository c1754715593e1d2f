"""What pictures are drawn with: boxes and arrows, bars against time, SVG."""
