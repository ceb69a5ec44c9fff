"""Weights: load, save, merge and hash them.

weights    any model of the hub or a folder, with or without LoRA
embedded   the small policy that is built from a config and needs no download
"""
