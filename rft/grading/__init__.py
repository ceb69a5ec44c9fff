"""Grading: from a finished rollout to a grade and a reward.

    grader     what a grade is made of, and which grader a type is
    endpoint   the grader behind an HTTP address
    protocol   what the loop, the stages and the replay know of a grader
    string_check, text_similarity, model_graders, multi
               the graders as data, one type each
    seen       what they look at, and what a place that is not there means
    python_grader, python_inside
               a grader that is source: outside the sandbox and inside it
    abstaining an answer that says "I don't know", graded before its grader sees it
    judge      asks another model
    neutralize makes harmless what the policy wrote, before a judge reads it
    code_under_test
               is code right that a model wrote? In a sandbox, by what it answers or by hidden tests
    within     is a score in the declared range?
    best_of    the grade of the best of several candidates
    wire       a grade in the words of the published contract
    budget     outcome times budget: what a solved task costs
    alarm      notices when failures depend on what the policy does
    preflight  plays the scripted exploits, which must not earn a reward
    scripted   calls that nobody sampled: the recipe's own, else the least that a schema allows
    target_leak finds tools that tell the target to whoever asks
    margins    states which hack rates a given number of test examples can show

Loads without torch.
"""
