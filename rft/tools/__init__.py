"""A tool call: is it well formed, where does it go, and what does the policy see of the reply?

client      sends the calls of a turn to their tools
http        a tool behind an HTTP address
arguments   checks a call's arguments against the tool's schema
local       tools that are Python functions, in processes of their own
mcp         tools of MCP servers
mcp_righted what such servers say otherwise than the protocol has it, put right
unlearned   settings that would show an embedded policy what it never learned to read
signatures  the schema of a tool, from its Python function
interpreter that of the user under which a recipe's tools run, where it is not ours
server      serves a recipe's tools and grader over HTTP
states      what a recipe keeps for each rollout on its server
lifetime    starts and stops that server around a stage
"""
