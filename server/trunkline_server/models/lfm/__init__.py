"""LFM2 (arXiv:2511.23404), dense and with experts."""
