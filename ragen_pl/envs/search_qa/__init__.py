"""Questions to be answered by searching: RAGEN-2's SearchQA."""
