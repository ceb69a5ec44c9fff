"""Look at what the agent did, and what it earned.

Every stage with a policy keeps all its rollouts: whole dialogues, grades, tokens. Those of the test
set stay closed, because somebody who reads them tunes on the test. For reading, the arms also play
validation examples. --open-test shows the test set. An entry in the ledger says so, and no later
run can be judged on it.

  rft rollouts                                          those of the newest run
  rft rollouts list RUN --stage train --worst 5         what went wrong most
  rft rollouts list --where "stop_reason = 'max_tokens' AND num_turns > 3"
  rft rollouts list --live                              while a stage works
  rft rollouts list RUN --open-test --reason TEXT       with the test set, which is retired then
  rft rollouts show 3f2a --tokens                       one dialogue, with grade and tokens
  rft rollouts group n-0007 --stage train               one example's rollouts side by side
  rft rollouts summary                                  what was trained on, and what was not
  rft rollouts export --out chat.jsonl                  for other programs
  rft rollouts replay --grader stricter.json            grade them again with another grader
"""
