"""`everstep crash-test`: kill a worker at every crash point of a user's own graph, and tell what differs afterwards.

`plan` says what is asked, `campaign` carries it out: two uninterrupted runs (`one_run`), then one run a crash point
(`points`), whose workers are forked by `fork_server` and watched from inside by `watch` and `touches`. `judgement`
compares (`differences`, `world`), `report` is what comes out.
"""
