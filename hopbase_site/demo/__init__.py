"""`make demo`: a fake provider and a show. Nothing here is needed to run a gateway.

script      what the fake provider says, and how the prompt makes it misbehave
wire        that, as the events and bodies of the three wire formats
provider    the fake provider itself: an ASGI application in a process of its own
stage       the demo's secrets and its processes
show        one request per wire format through the gateway, its record, the month's invoice
"""
