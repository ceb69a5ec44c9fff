"""Show the ledger: who decided what, when, with which key.

  rft ledger                                     every entry, oldest first; then what waits
  rft ledger show --json                         the same for programs, one entry per line
  rft ledger verify                              verify every signature again, and every anchor
  rft ledger people list                         who may decide, and which machines append
  rft ledger policy show                         the thresholds by which each model's gate decides
  rft ledger rules approvers=2 four_eyes=true --reason TEXT
  rft ledger clocks --days 30 --reason TEXT      as an owner: go on though two clocks disagree
  rft ledger erase ENTRY --reason TEXT           erase the list of examples of a registration
  rft ledger share                               upload what waits, once a remote is named
  rft ledger restart --reason TEXT               begin again, when every owner's key is lost

docs/ledger.md says what each signature proves. docs/verify-ledger.sh verifies without this program.
"""
