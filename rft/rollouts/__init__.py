"""Rollouts: play them, keep them, read them.

policy        what a policy is: the protocols that engines and servers implement
loop          THE loop: one rollout from the first message to its grade
loop_thread   an event loop in a thread of its own, while this one decodes
garbage       less work for the garbage collector meanwhile
prompting     the prompt in force, and how many turns it allows
recovery      pause, play again, refill
blame         is the grader down, or can it not judge what the policy wrote?
runner        all that a stage needs to play rollouts of its examples
pace          how far a batch of rollouts is, for those who wait
log           the one schema of the rollout log
store         finished rollouts survive any kill
transcript    a rollout as text
replay        grade recorded rollouts again
evaluate      the numbers of a set of rollouts
serving       of several rollouts the one that is served, before anybody knows a grade
suspicion     are a baseline's numbers about the agent, or about its wiring?
play          talk to an agent
determinism   when equal inputs give equal bytes, and what is refused then
"""
