"""Events: everything is done when it is returned, so there is one, and it is always ready."""

from __future__ import annotations

from glia.plugins.pjrt.api_table import machine_getter, provides_callback
from glia.plugins.pjrt.c_memory import give_handle

READY = give_handle("ready")

for _does_nothing in ("Event_Destroy", "Event_Error", "Event_Await"):
    machine_getter(_does_nothing, "event")
machine_getter("Event_IsReady", "event", is_ready=1)
provides_callback("Event_OnReady")
