"""Grading: from a finished rollout to a grade and a reward.

    grader     makes the grader that grader.json asks for
    endpoint   the grader behind an HTTP address
    protocol   the interface of a grader for the loop, the stages and the replay
    string_check, text_similarity, model_graders, multi
               graders that grader.json describes as data, one type each
    seen       what these graders look at, and what happens when a part of it is missing
    python_grader, python_inside
               a grader given as Python source: the code outside the sandbox, and the code inside
    abstaining grades an answer that says "I don't know" before its grader sees it
    judge      asks another model
    neutralize makes harmless what the policy wrote, before a judge reads it
    code_under_test
               checks code that a model wrote, in a sandbox: by its answers or by hidden tests
    within     checks that a score is in the declared range
    best_of    the grade of the best of several candidates
    wire       a grade in the form of the published contract
    budget     lowers the reward of a rollout that used too much
    alarm      notices when failures depend on what the policy does
    preflight  plays the scripted exploits, which must not earn a reward
    scripted   tool calls without a model: the recipe's own, else the smallest that a schema allows
    target_leak finds tools that tell the target to any caller
    margins    states which hack rates a given number of test examples can show

Loads without torch.
"""
