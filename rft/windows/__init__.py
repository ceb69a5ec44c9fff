"""Windows of production traffic: how they are read, described and compared.

conversations   parse logs of several formats into conversations
profile         describe a window by the distributions of its features
distances       measure how far apart two distributions are, and how sure that is
contracts       state what every window must fulfill, as Great Expectations checks
"""
