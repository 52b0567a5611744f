"""Text environments; each imports neither torch nor transformers."""
