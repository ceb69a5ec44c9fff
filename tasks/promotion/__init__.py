"""Who is champion, and who decided it.

registry   MLflow's alias `@champion`, moved by one function
ledger     approvals, rejections and rollbacks, one line per act
agents     any agent of the registry or a run, laid out in a folder
smoke      a few examples that an agent plays right before its promotion
signing    the signature of its weights, in OpenSSF's format for models
"""
