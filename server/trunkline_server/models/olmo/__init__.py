"""OLMo 2 (arXiv:2501.00656) and OLMo 3: norms behind attention and MLP instead of before them. OLMoE
(arXiv:2409.02060): experts in each layer.

All of them normalise queries and keys over all heads. In OLMo 3, layers with a window have no rope scaling.
"""
