"""Command R and Command R7B: attention and MLP side by side behind one layer norm without a bias.

In Command R7B, layers with a window rotate, and the others, which see everything, do not.
"""
