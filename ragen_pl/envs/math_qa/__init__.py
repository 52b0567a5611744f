"""Questions of mathematics from a file: RAGEN-2's MetaMathQA, GSM8K, or your own."""
