"""Stories of several processes, in the order in which they run."""

from . import behaviour, devices, faults, moves, nvml, parts, pool, seats, survival, timeline, variables

SCENARIOS = {
    "behaviour": behaviour.every_call_answers_as_the_driver_does,
    "two_devices": devices.two_workers_are_two_devices,
    "session_killed": faults.the_session_is_killed,
    "front_killed": faults.the_worker_is_killed,
    "survives": survival.the_session_is_killed_and_the_program_goes_on,
    "survives_default": survival.with_default_flags_it_goes_on_or_says_why,
    "variables": variables.variables_lie_where_they_lay,
    "kernel_faults": faults.a_kernel_faults,
    "memory_limit": faults.an_allocation_is_over_the_limit,
    "moves": moves.programs_move_and_rest,
    "moves_in_a_box": moves.programs_move_within_a_box,
    "parts": parts.leases_have_their_shares,
    "seats": seats.leases_meet,
    "seats_dedicated": seats.a_dedicated_lease_has_it_all,
    "seats_overcommit": seats.memory_is_promised_twice,
    "pool": pool.a_box_lends_this_gpu,
    "nvml": nvml.nvml_shows_the_leased_gpu,
    "nvidia_smi": nvml.nvidia_smi_runs,
    "timeline": timeline.durations_are_those_of_the_gpu,
    "timeline_cost": timeline.programs_pay_little,
}
