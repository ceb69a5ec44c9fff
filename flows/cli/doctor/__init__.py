"""Check for what would go wrong, before any compute is spent.

  rft doctor                         every check, in about a minute
  rft doctor check --only tools      one check, and those that it needs
  rft doctor exploits                the grader must refuse the recipe's cheats, and some of ours
  rft doctor speed                   how fast does this machine sample and learn?
  rft doctor model                   which base model does policy.model name?

Nothing is recorded, and no run is started.
"""
