"""Base models and weights: find them, pin their bytes, load, save, merge and hash them.

source      which bytes a given base model is: found by the flow, checked by each stage
hub         models of a hub: the commit that a name means, and its files
hashes      the hash of each file, computed once
templates   a chat template, with the arguments of policy.template_arguments written into it
shape       a model without its weights, to count and to measure
weights     load a base model, with or without LoRA; save and hash what was learned
unmerged    an adapter beside the weights, where merging would round it away
effect      how much of what was learned is in the weights that are used
embedded    the small policy that is built from a config and needs no download
heap        what becomes of memory that is freed: kept for the next buffers, or given back
"""
