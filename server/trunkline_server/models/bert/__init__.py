"""BERT (arXiv:1810.04805), and RoBERTa and XLM-RoBERTa (arXiv:1907.11692, arXiv:1911.02116): encoders."""
