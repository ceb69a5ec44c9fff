"""Rollouts: play them, keep them, read them.

The modules:

    policy        what a policy is: the protocols that engines and servers implement
    loop          THE loop: one rollout from the first message to its grade
    loop_thread   an event loop in a thread of its own, while the calling thread decodes
    garbage       less work for the garbage collector during a batch
    prompting     the prompt in force, and how many turns it allows
    recovery      pause, play again, refill
    blame         tells a grader that is down from one that cannot judge the policy's answer
    runner        all that a stage needs to play rollouts of its examples
    pace          the progress of a batch of rollouts
    log           the one schema of the rollout log
    store         keeps finished rollouts through any kill
    transcript    a rollout as text
    replay        grades recorded rollouts again
    evaluate      the numbers of a set of rollouts
    serving       chooses the rollout that is served, before anybody knows a grade
    suspicion     finds baselines whose numbers are about the wiring and not about the agent
    play          a person's conversation with an agent
    determinism   when equal inputs give equal bytes, and what is refused then
"""
