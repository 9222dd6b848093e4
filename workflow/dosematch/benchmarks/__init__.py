"""What `make bench` measures with: paired timing, the other sides of the comparisons, physical limits."""
