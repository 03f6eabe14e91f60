"""MAP-Tree: the mode of a posterior whose likelihood can only be simulated.

O'Hagan, Kim & Rockova, *Tree bandits for generative Bayes*.
"""
