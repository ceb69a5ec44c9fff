"""Policies that produce tokens: the engine in this process, and servers.

engine     many dialogues decoded at once
kv_cache   the keys and values of all dialogues side by side
prefixes   what prompts have in common is computed once
decode     a fast forward pass for the families that it knows
attention  what it does between two products
batching   brings the turns of many rollouts together
policies   which weights and prompt sample in a stage
remote     policies on servers: vLLM, SGLang, chat endpoints
"""
