"""Grading: from a finished rollout to a grade and a reward.

    grader     the `Grader` protocol, and what a grade is made of
    endpoint   the grader behind an HTTP address
    budget     outcome times budget: what a solved task costs
    alarm      notices when failures depend on what the policy does
    preflight  plays the scripted exploits, which must not earn a reward
    margins    states which hack rates a given number of test examples can show

Loads without torch.
"""
