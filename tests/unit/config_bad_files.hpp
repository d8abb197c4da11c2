// Bad configuration files, each with the message with which it must be refused. config_test.cc checks all of them.
//
// The messages assume a machine with CPUs 0 to 3, of which this process may not use CPU 2.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "pollcore/flow_control.hpp"

namespace pollcore::bad_files {

inline constexpr std::string_view kDevice = "[[device]]\nname = \"d\"\nkind = \"soft\"\n";  // 3 lines
inline constexpr std::string_view kVerbs = "[[device]]\nname = \"d\"\nkind = \"verbs\"\n";  // 3 lines
inline constexpr std::string_view kWorker = "[[worker]]\nname = \"w\"\ncore = 1\n";         // 3 lines
inline constexpr std::string_view kEcho =
    "[[service]]\nname = \"s\"\nkind = \"echo\"\ndevice = \"d\"\nworker = \"w\"\n";  // 5
inline constexpr std::string_view kMemory =
    "[[service]]\nname = \"s\"\nkind = \"memory\"\ndevice = \"d\"\nworker = \"w\"\n";  // 5

inline constexpr std::string_view kSecondMemory =
    "[[service]]\nname = \"t\"\nkind = \"memory\"\ndevice = \"d\"\nworker = \"w\"\n";  // 5

inline std::string join(std::initializer_list<std::string_view> parts) {
    std::string text;
    for (const std::string_view part : parts) {
        text += part;
    }
    return text;
}

struct BadFile {
    const char* name;
    std::string text;
    /// The exact message. If it ends in '*', it is only the beginning of the message, because the TOML parser chooses
    /// the words at the end.
    std::string message;
};

inline std::string idle_accepted() {
    return "\"spin\", \"pause\", \"monitor\", \"yield\" or \"event\", or a list in which each but the last has its "
           "time, such as "
           "[{spin = \"20us\"}, {pause = \"200us\"}, \"event\"]";
}

inline std::string flow_controls() {
    std::string names;
    for (const FlowControl kind : kFlowControls) {
        names += (names.empty() ? "\"" : ", \"") + std::string(flow_control_name(kind)) + '"';
    }
    return names;
}

// A file that would be valid without `line`.
inline std::string device_with(std::string_view line) {
    return join({kDevice, line, "\n", kWorker});
}
inline std::string verbs_with(std::string_view line) {
    return join({kVerbs, line, "\n", kWorker});
}
inline std::string worker_with(std::string_view line) {
    return join({kDevice, kWorker, line, "\n"});
}
inline std::string runtime_with(std::string_view line) {
    return join({kDevice, kWorker, "[runtime]\n", line, "\n"});
}
inline std::string memory_with(std::string_view line) {
    return join({kDevice, kWorker, "[memory]\n", line, "\n"});
}
inline std::string attach_with(std::string_view line) {
    return join({kDevice, kWorker, "[attach]\npath = \"/run/p.sock\"\n", line, "\n"});
}
inline std::string echo_with(std::string_view line) {
    return join({kDevice, kWorker, kEcho, line, "\n"});
}
inline std::string verbs_echo_with(std::string_view line) {
    return join({kVerbs, kWorker, kEcho, line, "\n"});
}

inline std::string many_devices(int count) {
    std::string text(kWorker);
    for (int i = 0; i < count; ++i) {
        text += "[[device]]\nname = \"d" + std::to_string(i) + "\"\nkind = \"soft\"\n";
    }
    return text;
}

inline std::vector<BadFile> all() {
    return {
        {"not_toml", "[runtime\n", "f.toml:1: column 9: this is not TOML: *"},
        {"a_key_twice", worker_with("core = 2"), "f.toml:7: column 8: this is not TOML: *"},
        {"a_table_twice", join({kDevice, kWorker, "[memory]\n[memory]\n"}), "f.toml:8: column 1: this is not TOML: *"},
        {"an_integer_beyond_64_bits", runtime_with("qps_max = 99999999999999999999"),
         "f.toml:8: column 31: this is not TOML: *"},
        {"an_open_string", device_with("gid = \"192"), "f.toml:4: column 11: this is not TOML: *"},
        {"a_control_character_in_a_string", echo_with("address = \"a\x01\""),
         "f.toml:12: column 13: this is not TOML: *"},
        {"bytes_that_are_no_utf8", echo_with("address = \"a\xff\""), "f.toml:12: column 12: this is not TOML: *"},
        {"a_long_line", runtime_with("# " + std::string(2000, 'x')),
         "f.toml:8: a line of 2002 bytes; accepted: lines of at most 1024 bytes"},
        {"deep_nesting", runtime_with("x = " + std::string(600, '[')), "f.toml:8: column 261: this is not TOML: *"},
        {"nothing_at_all", "", "f.toml:1: device: there is none; accepted: 1 to 16 tables [[device]]"},
        {"no_device", std::string(kWorker), "f.toml:1: device: there is none; accepted: 1 to 16 tables [[device]]"},
        {"no_worker", std::string(kDevice), "f.toml:1: worker: there is none; accepted: 1 to 128 tables [[worker]]"},
        {"an_empty_list_of_workers", join({"worker = []\n", kDevice}),
         "f.toml:1: worker: there is none; accepted: 1 to 128 tables [[worker]]"},
        {"an_unknown_table", join({kDevice, kWorker, "[[services]]\nname = \"s\"\n"}),
         "f.toml:7: services = [...]: there is no such key, did you mean \"service\"?; accepted: [runtime], "
         "[memory], [attach], [control], [statistics], [[device]], [[worker]], [[service]]"},
        {"a_key_outside_of_tables", join({"qps_max = 16\n", kDevice, kWorker}),
         "f.toml:1: qps_max = 16: there is no such key; accepted: [runtime], [memory], [attach], [control], "
         "[statistics], [[device]], [[worker]], [[service]]"},
        {"a_device_that_is_no_list", join({"[device]\nname = \"d\"\n", kWorker}),
         "f.toml:1: device = {...}: it is a table where a list of tables belongs; accepted: a table "
         "[[device]] for each device"},
        {"a_worker_that_is_no_table", join({"worker = [3]\n", kDevice}),
         "f.toml:1: worker[0] = 3: it is an integer where a table belongs; accepted: a table with the keys "
         "name, core, idle, wake_on, comp_vector, moderation_count, moderation_period, submit_burst, complete_burst, "
         "qp_burst, cq_depth, poll"},
        {"a_runtime_that_is_a_list", join({kDevice, kWorker, "[[runtime]]\nqps_max = 16\n"}),
         "f.toml:7: runtime = [...]: it is a list where a table belongs; accepted: a table with the keys "
         "qps_max, share_cores, lock_directory, drain_timeout, hang_limit, log_level"},
        {"too_many_devices", many_devices(17),
         "f.toml:52: device[16]: there are 17; accepted: 1 to 16 tables [[device]]"},
        {"an_unknown_key_near_to_one", worker_with("submit_brust = 8"),
         "f.toml:7: worker[0].submit_brust = 8: there is no such key, did you mean \"submit_burst\"?; "
         "accepted: name, core, idle, wake_on, comp_vector, moderation_count, moderation_period, submit_burst, "
         "complete_burst, qp_burst, cq_depth, poll"},
        {"an_unknown_key_near_to_nothing", worker_with("priority = 99"),
         "f.toml:7: worker[0].priority = 99: there is no such key; accepted: name, core, idle, wake_on, comp_vector, "
         "moderation_count, moderation_period, submit_burst, "
         "complete_burst, qp_burst, cq_depth, poll"},
        {"an_unknown_key_in_quotes", memory_with("\"huge pages\" = \"never\""),
         "f.toml:8: memory.\"huge pages\" = \"never\": there is no such key, did you mean \"hugepages\"?; "
         "accepted: hugepages, size"},
        {"an_unknown_key_with_a_line_break", memory_with("\"a\\nb\" = 1"),
         "f.toml:8: memory.\"a\\u000Ab\" = 1: there is no such key; accepted: hugepages, size"},
        {"an_empty_key", memory_with("\"\" = [1, 2]"),
         "f.toml:8: memory.\"\" = [...]: there is no such key; accepted: hugepages, size"},
        {"an_unknown_dotted_key", runtime_with("log.level = \"info\""),
         "f.toml:8: runtime.log = {...}: there is no such key; accepted: qps_max, share_cores, lock_directory, "
         "drain_timeout, hang_limit, log_level"},
        {"a_device_without_name", join({kWorker, "\n[[device]]\nkind = \"soft\"\n"}),
         "f.toml:5: device[0].name: this key is required and missing; accepted: a word of letters, digits, "
         "'_', '-' and '.', at most 63 characters"},
        {"a_device_without_kind", join({kWorker, "\n[[device]]\nname = \"d\"\n"}),
         "f.toml:5: device[0].kind: this key is required and missing; accepted: \"soft\", \"verbs\""},
        {"a_worker_for_whom_no_core_is_left",
         join({kDevice, "[[worker]]\nname = \"s\"\n", kWorker, "[[worker]]\nname = \"t\"\n[[worker]]\nname = \"u\"\n"}),
         "f.toml:11: worker[3].core: this key is missing, and each core that this process may use has a worker; "
         "accepted: no more workers "
         "than cores, which are 0-1,3"},
        {"a_service_without_device",
         join({kDevice, kWorker, "[[service]]\nname = \"s\"\nkind = \"echo\"\nworker = \"w\"\naddress = \"a\"\n"}),
         "f.toml:7: service[0].device: this key is required and missing; accepted: a word of letters, "
         "digits, '_', '-' and '.', at most 63 characters"},
        {"a_service_without_address", join({kDevice, kWorker, kEcho}),
         "f.toml:7: service[0].address: this key is required and missing; accepted: on a soft device a word, "
         "on a verbs device a numeric ADDRESS:PORT or [ADDRESS%ZONE]:PORT, such as \"192.0.2.1:7471\" or "
         "\"[fe80::1%eth0]:7471\""},
        {"verbs_name_on_a_soft_device", device_with("verbs_name = \"mlx5_0\""),
         "f.toml:4: device[0].verbs_name = \"mlx5_0\": this key is for devices of kind \"verbs\" only; "
         "accepted: name, kind, profile"},
        {"port_on_a_soft_device", device_with("port = 1"),
         "f.toml:4: device[0].port = 1: this key is for devices of kind \"verbs\" only; accepted: name, "
         "kind, profile"},
        {"profile_on_a_verbs_device", verbs_with("profile = \"mlx5\""),
         "f.toml:4: device[0].profile = \"mlx5\": this key is for devices of kind \"soft\" only; accepted: name, "
         "kind, verbs_name, port, gid"},
        {"a_profile_that_there_is_not", device_with("profile = \"efa\""),
         "f.toml:4: device[0].profile = \"efa\": there is no such choice; accepted: \"standard\", \"rxe\", "
         "\"mlx5\""},
        {"message_size_max_of_a_memory_service",
         join({kDevice, kWorker, kMemory, "address = \"a\"\nmessage_size_max = \"4KiB\"\n"}),
         "f.toml:13: service[0].message_size_max = \"4KiB\": this key is for services of kind \"echo\" only; "
         "accepted: name, kind, device, worker, address, size, connections_max"},
        {"depth_of_a_memory_service", join({kDevice, kWorker, kMemory, "address = \"a\"\ndepth = 4\n"}),
         "f.toml:13: service[0].depth = 4: this key is for services of kind \"echo\" only; accepted: name, "
         "kind, device, worker, address, size, connections_max"},
        {"size_of_an_echo_service", echo_with("address = \"a\"\nsize = \"1MiB\""),
         "f.toml:13: service[0].size = \"1MiB\": this key is for services of kind \"memory\" only; accepted: "
         "name, kind, device, worker, address, message_size_max, depth, flow, connections_max"},
        {"a_flow_control_that_nobody_knows", echo_with("address = \"a\"\nflow = \"hope\""),
         "f.toml:13: service[0].flow = \"hope\": there is no such choice; accepted: " + flow_controls()},
        {"a_flow_control_without_receives", echo_with("address = \"a\"\nflow = \"ring\""),
         "f.toml:13: service[0].flow = \"ring\": an echo service posts receives, and with this flow control messages "
         "arrive without any; "
         "accepted: a flow control by which messages take receives, such as \"credits\""},
        {"a_string_for_a_count", worker_with("submit_burst = \"8\""),
         "f.toml:7: worker[0].submit_burst = \"8\": it is a string where an integer belongs; accepted: an "
         "integer from 1 to 256"},
        {"a_float_for_a_count", worker_with("submit_burst = 8.0"),
         "f.toml:7: worker[0].submit_burst = 8.0: it is a floating-point number where an integer belongs; "
         "accepted: an integer from 1 to 256"},
        {"a_boolean_for_a_count", worker_with("submit_burst = true"),
         "f.toml:7: worker[0].submit_burst = true: it is a boolean where an integer belongs; accepted: an "
         "integer from 1 to 256"},
        {"a_date_for_a_count", worker_with("submit_burst = 2024-02-29"),
         "f.toml:7: worker[0].submit_burst = 2024-02-29: it is a date or time where an integer belongs; "
         "accepted: an integer from 1 to 256"},
        {"a_list_for_a_count", worker_with("submit_burst = [8]"),
         "f.toml:7: worker[0].submit_burst = [...]: it is a list where an integer belongs; accepted: an "
         "integer from 1 to 256"},
        {"a_table_for_a_count", worker_with("submit_burst = {is = 8}"),
         "f.toml:7: worker[0].submit_burst = {...}: it is a table where an integer belongs; accepted: an "
         "integer from 1 to 256"},
        {"an_integer_for_a_name", join({kDevice, "[[worker]]\nname = 1\ncore = 1\n"}),
         "f.toml:5: worker[0].name = 1: it is an integer where a string belongs; accepted: a word of "
         "letters, digits, '_', '-' and '.', at most 63 characters"},
        {"a_boolean_for_a_choice", memory_with("hugepages = true"),
         "f.toml:8: memory.hugepages = true: it is a boolean where a string belongs; accepted: \"require\", "
         "\"prefer\", \"never\""},
        {"a_string_for_a_core", join({kDevice, "[[worker]]\nname = \"w\"\ncore = \"1\"\n"}),
         "f.toml:6: worker[0].core = \"1\": it is a string where an integer belongs; accepted: 0-1,3"},
        {"a_burst_of_zero", worker_with("qp_burst = 0"),
         "f.toml:7: worker[0].qp_burst = 0: it is too small; accepted: an integer from 1 to 256"},
        {"a_burst_too_large", worker_with("complete_burst = 257"),
         "f.toml:7: worker[0].complete_burst = 257: it is too large; accepted: an integer from 1 to 256"},
        {"a_negative_count", worker_with("submit_burst = -1"),
         "f.toml:7: worker[0].submit_burst = -1: it is negative; accepted: an integer from 1 to 256"},
        {"a_count_beyond_32_bits", worker_with("submit_burst = 4294967297"),
         "f.toml:7: worker[0].submit_burst = 4294967297: it is too large; accepted: an integer from 1 to "
         "256"},
        {"a_cq_depth_that_is_no_power_of_two", worker_with("cq_depth = 1000"),
         "f.toml:7: worker[0].cq_depth = 1000: it is no power of two; accepted: a power of two from 16 to "
         "4194304"},
        {"a_cq_depth_too_small", worker_with("cq_depth = 8"),
         "f.toml:7: worker[0].cq_depth = 8: it is too small; accepted: a power of two from 16 to 4194304"},
        {"qps_that_are_no_power_of_two", runtime_with("qps_max = 1000"),
         "f.toml:8: runtime.qps_max = 1000: it is no power of two; accepted: a power of two from 1 to 65536"},
        {"too_many_qps", runtime_with("qps_max = 131072"),
         "f.toml:8: runtime.qps_max = 131072: it is too large; accepted: a power of two from 1 to 65536"},
        {"port_zero_of_a_device", verbs_with("port = 0"),
         "f.toml:4: device[0].port = 0: it is too small; accepted: an integer from 1 to 255"},
        {"a_port_beyond_its_field", verbs_with("port = 257"),
         "f.toml:4: device[0].port = 257: it is too large; accepted: an integer from 1 to 255"},
        {"a_depth_of_zero", echo_with("depth = 0\naddress = \"a\""),
         "f.toml:12: service[0].depth = 0: it is too small; accepted: an integer from 1 to 65536"},
        {"a_core_that_does_not_exist", join({kDevice, "[[worker]]\nname = \"w\"\ncore = 64\n"}),
         "f.toml:6: worker[0].core = 64: this machine has no such core; accepted: 0-1,3"},
        {"a_core_beyond_32_bits", join({kDevice, "[[worker]]\nname = \"w\"\ncore = 4294967297\n"}),
         "f.toml:6: worker[0].core = 4294967297: this machine has no such core; accepted: 0-1,3"},
        {"a_core_of_others", join({kDevice, "[[worker]]\nname = \"w\"\ncore = 2\n"}),
         "f.toml:6: worker[0].core = 2: this process may not run on that core (its cpuset "
         "leaves it out); accepted: 0-1,3"},
        {"a_negative_core", join({kDevice, "[[worker]]\nname = \"w\"\ncore = -1\n"}),
         "f.toml:6: worker[0].core = -1: it is negative; accepted: 0-1,3"},
        {"two_workers_on_a_core", join({kDevice, kWorker, "[[worker]]\nname = \"v\"\ncore = 1\n"}),
         "f.toml:9: worker[1].core = 1: worker[0] has this core already, and a worker shares its core with "
         "no other; accepted: 0,3"},
        {"a_size_without_unit", memory_with("size = 67108864"),
         "f.toml:8: memory.size = 67108864: a size is a string with a unit (B, KiB, MiB, GiB or TiB), so "
         "that nobody takes one unit for another; accepted: a multiple of \"2MiB\" from \"16MiB\" to "
         "\"1TiB\""},
        {"a_size_in_a_string_without_unit", memory_with("size = \"67108864\""),
         "f.toml:8: memory.size = \"67108864\": it has no unit; units are B, KiB, MiB, GiB, TiB; accepted: a "
         "multiple of \"2MiB\" from \"16MiB\" to \"1TiB\""},
        {"a_size_with_a_decimal_unit", memory_with("size = \"64MB\""),
         "f.toml:8: memory.size = \"64MB\": its unit is unknown; units are B, KiB, MiB, GiB, TiB; accepted: "
         "a multiple of \"2MiB\" from \"16MiB\" to \"1TiB\""},
        {"a_size_with_a_space", memory_with("size = \"64 MiB\""),
         "f.toml:8: memory.size = \"64 MiB\": its unit is unknown; units are B, KiB, MiB, GiB, TiB; "
         "accepted: a multiple of \"2MiB\" from \"16MiB\" to \"1TiB\""},
        {"a_size_with_a_fraction", memory_with("size = \"1.5GiB\""),
         "f.toml:8: memory.size = \"1.5GiB\": it is no whole number of its unit; accepted: a multiple of "
         "\"2MiB\" from \"16MiB\" to \"1TiB\""},
        {"a_negative_size", memory_with("size = \"-64MiB\""),
         "f.toml:8: memory.size = \"-64MiB\": it is negative; accepted: a multiple of \"2MiB\" from "
         "\"16MiB\" to \"1TiB\""},
        {"an_empty_size", memory_with("size = \"\""),
         "f.toml:8: memory.size = \"\": it is empty; accepted: a multiple of \"2MiB\" from \"16MiB\" to "
         "\"1TiB\""},
        {"a_size_without_number", memory_with("size = \"MiB\""),
         "f.toml:8: memory.size = \"MiB\": it does not begin with a number; accepted: a multiple of \"2MiB\" "
         "from \"16MiB\" to \"1TiB\""},
        {"a_size_beyond_64_bits", memory_with("size = \"16777216TiB\""),
         "f.toml:8: memory.size = \"16777216TiB\": it does not fit into 64 bits; accepted: a multiple of "
         "\"2MiB\" from \"16MiB\" to \"1TiB\""},
        {"a_number_beyond_64_bits", memory_with("size = \"99999999999999999999B\""),
         "f.toml:8: memory.size = \"99999999999999999999B\": it does not fit into 64 bits; accepted: a "
         "multiple of \"2MiB\" from \"16MiB\" to \"1TiB\""},
        {"a_size_too_large", memory_with("size = \"2TiB\""),
         "f.toml:8: memory.size = \"2TiB\": it is too large; accepted: a multiple of \"2MiB\" from \"16MiB\" "
         "to \"1TiB\""},
        {"a_size_too_small", memory_with("size = \"1MiB\""),
         "f.toml:8: memory.size = \"1MiB\": it is too small; accepted: a multiple of \"2MiB\" from \"16MiB\" "
         "to \"1TiB\""},
        {"a_size_that_would_be_rounded", memory_with("size = \"33MiB\""),
         "f.toml:8: memory.size = \"33MiB\": it is no multiple of 2MiB; accepted: a multiple of \"2MiB\" "
         "from \"16MiB\" to \"1TiB\""},
        {"a_message_size_of_zero", echo_with("message_size_max = \"0B\"\naddress = \"a\""),
         "f.toml:12: service[0].message_size_max = \"0B\": it is too small; accepted: a size from \"1B\" to "
         "\"2GiB\""},
        {"a_duration_without_unit", runtime_with("drain_timeout = 2"),
         "f.toml:8: runtime.drain_timeout = 2: a duration is a string with a unit (ns, us, ms or s), so that "
         "nobody takes one unit for another; accepted: a duration from \"1ms\" to \"600s\" in whole "
         "milliseconds"},
        {"a_duration_with_an_unknown_unit", runtime_with("drain_timeout = \"2min\""),
         "f.toml:8: runtime.drain_timeout = \"2min\": its unit is unknown; units are ns, us, ms, s; "
         "accepted: a duration from \"1ms\" to \"600s\" in whole milliseconds"},
        {"a_duration_that_would_be_rounded", runtime_with("drain_timeout = \"50us\""),
         "f.toml:8: runtime.drain_timeout = \"50us\": it is no whole number of milliseconds; accepted: a "
         "duration from \"1ms\" to \"600s\" in whole milliseconds"},
        {"a_duration_too_short", runtime_with("drain_timeout = \"0s\""),
         "f.toml:8: runtime.drain_timeout = \"0s\": it is too short; accepted: a duration from \"1ms\" to "
         "\"600s\" in whole milliseconds"},
        {"a_duration_too_long", runtime_with("drain_timeout = \"601s\""),
         "f.toml:8: runtime.drain_timeout = \"601s\": it is too long; accepted: a duration from \"1ms\" to "
         "\"600s\" in whole milliseconds"},
        {"a_negative_duration", runtime_with("drain_timeout = \"-2s\""),
         "f.toml:8: runtime.drain_timeout = \"-2s\": it is negative; accepted: a duration from \"1ms\" to "
         "\"600s\" in whole milliseconds"},
        {"a_duration_beyond_64_bits", runtime_with("drain_timeout = \"10000000000s\""),
         "f.toml:8: runtime.drain_timeout = \"10000000000s\": it does not fit into 64 bits of nanoseconds; "
         "accepted: a duration from \"1ms\" to \"600s\" in whole milliseconds"},
        {"a_name_of_two_words", join({kWorker, "[[device]]\nname = \"a b\"\nkind = \"soft\"\n"}),
         "f.toml:5: device[0].name = \"a b\": it is not one word; accepted: a word of letters, digits, '_', "
         "'-' and '.', at most 63 characters"},
        {"an_empty_name", join({kWorker, "[[device]]\nname = \"\"\nkind = \"soft\"\n"}),
         "f.toml:5: device[0].name = \"\": it is empty; accepted: a word of letters, digits, '_', '-' and "
         "'.', at most 63 characters"},
        {"a_name_too_long", join({kWorker, "[[device]]\nname = \"", std::string(100, 'n'), "\"\nkind = \"soft\"\n"}),
         "f.toml:5: device[0].name = "
         "\"nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn\"...: it has "
         "100 characters; accepted: a word of letters, digits, '_', '-' and '.', at most 63 characters"},
        {"an_unknown_choice", worker_with("idle = \"sleep\""),
         "f.toml:7: worker[0].idle = \"sleep\": there is no way to wait called \"sleep\"; accepted: " +
             idle_accepted()},
        {"an_empty_ladder", worker_with("idle = []"),
         "f.toml:7: worker[0].idle = []: it is empty; accepted: " + idle_accepted()},
        {"a_ladder_of_numbers", worker_with("idle = 5"),
         "f.toml:7: worker[0].idle = 5: it is an integer where a way to wait, or a list of them, belongs; accepted: " +
             idle_accepted()},
        {"a_rung_without_its_time", worker_with("idle = [\"spin\", \"event\"]"),
         "f.toml:7: worker[0].idle = [...]: \"spin\" has no time, and something follows it; accepted: " +
             idle_accepted()},
        {"a_last_rung_with_a_time", worker_with("idle = [{spin = \"20us\"}]"),
         "f.toml:7: worker[0].idle = [...]: the last one, \"spin\", has a time, and nothing follows it; "
         "accepted: " +
             idle_accepted()},
        {"a_rung_after_event", worker_with("idle = [{event = \"20us\"}, \"spin\"]"),
         "f.toml:7: worker[0].idle = [...]: a worker sleeps until something wakes it, so that nothing "
         "follows \"event\"; accepted: " +
             idle_accepted()},
        {"a_rung_twice", worker_with("idle = [{spin = \"20us\"}, {pause = \"1ms\"}, \"spin\"]"),
         "f.toml:7: worker[0].idle = [...]: \"spin\" is in it twice; accepted: " + idle_accepted()},
        {"a_rung_without_a_unit", worker_with("idle = [{spin = \"20\"}, \"event\"]"),
         "f.toml:7: worker[0].idle = [...]: the time of \"spin\": it has no unit; units are ns, us, ms, "
         "s; accepted: " +
             idle_accepted()},
        {"a_rung_of_two", worker_with("idle = [{spin = \"20us\", pause = \"1ms\"}, \"event\"]"),
         "f.toml:7: worker[0].idle = [...]: each of its tables is one way to wait "
         "with its time, such as {spin = \"20us\"}; accepted: " +
             idle_accepted()},
        {"a_rung_of_no_time", worker_with("idle = [{spin = \"0us\"}, \"event\"]"),
         "f.toml:7: worker[0].idle = [...]: the time of \"spin\" is 0; accepted: " + idle_accepted()},
        {"a_rung_of_hours", worker_with("idle = [{spin = \"7200s\"}, \"event\"]"),
         "f.toml:7: worker[0].idle = [...]: \"spin\" lasts for more than an hour; accepted: " + idle_accepted()},
        {"a_cpu_without_tpause", worker_with("idle = \"monitor\""),
         "f.toml:7: worker[0].idle = \"monitor\": the CPUs of this machine have no TPAUSE (CPUID feature \"waitpkg\"), "
         "which "
         "\"monitor\" is; \"pause\" is as near as they come; accepted: " +
             idle_accepted()},
        {"a_vector_of_a_worker_that_spins", worker_with("comp_vector = 1"),
         "f.toml:7: worker[0].comp_vector = 1: this key is for workers whose idle has \"event\" only; accepted: name, "
         "core, idle, "
         "submit_burst, complete_burst, qp_burst, cq_depth, poll"},
        {"a_vector_that_is_negative", worker_with("idle = \"event\"\ncomp_vector = -1"),
         "f.toml:8: worker[0].comp_vector = -1: it is negative; accepted: \"spread\", or an integer from 0 to 65535 "
         "that is "
         "below the device's num_comp_vectors"},
        {"an_echo_that_nothing_wakes",
         join({kDevice, kWorker, "idle = \"event\"\nwake_on = \"solicited\"\n", kEcho, "address = \"x\"\n"}),
         "f.toml:13: service[0].worker = \"w\": only solicited messages wake that worker (wake_on), and those of an "
         "echo "
         "service's peers need not be; accepted: a worker with wake_on = \"all\""},
        {"moderation_without_a_period", worker_with("idle = \"event\"\nmoderation_count = 8"),
         "f.toml:8: worker[0].moderation_count = 8: without a moderation_period fewer completions would wake the "
         "worker never; "
         "accepted: 1, or more with a moderation_period above \"0us\""},
        {"an_unknown_way_to_poll", worker_with("poll = \"ex\""),
         "f.toml:7: worker[0].poll = \"ex\": there is no such choice; accepted: \"auto\", \"extended\", "
         "\"plain\""},
        {"an_unknown_log_level", runtime_with("log_level = \"Info\""),
         "f.toml:8: runtime.log_level = \"Info\": there is no such choice; accepted: \"error\", \"warning\", "
         "\"info\", \"debug\""},
        {"a_gid_that_is_a_name", verbs_with("gid = \"host.example\""),
         "f.toml:4: device[0].gid = \"host.example\": it is no numeric IP address; accepted: a numeric IPv4 "
         "or IPv6 address, such as \"192.0.2.1\", or \"\" for the first RoCE v2 entry"},
        {"a_gid_with_a_nul", verbs_with("gid = \"192.0.2.1\\u0000\""),
         "f.toml:4: device[0].gid = \"192.0.2.1\\u0000\": it is no numeric IP address; accepted: a numeric "
         "IPv4 or IPv6 address, such as \"192.0.2.1\", or \"\" for the first RoCE v2 entry"},
        {"a_relative_lock_directory", runtime_with("lock_directory = \"locks\""),
         "f.toml:8: runtime.lock_directory = \"locks\": it is relative, and the daemon's working directory "
         "is not the operator's; accepted: the absolute path of a directory, or \"\" for this user's own"},
        {"a_word_for_a_boolean", runtime_with("share_cores = \"yes\""),
         "f.toml:8: runtime.share_cores = \"yes\": it is a string where a boolean belongs; accepted: true, false"},
        {"a_lock_directory_with_a_line_break", runtime_with("lock_directory = \"/a\\nb\""),
         "f.toml:8: runtime.lock_directory = \"/a\\u000Ab\": it holds control characters or is no UTF-8; "
         "accepted: the absolute path of a directory, or \"\" for this user's own"},
        {"an_unknown_user", attach_with("users = [\"root\", \"no-such-user\"]"),
         "f.toml:9: attach.users = [...]: this machine has no user \"no-such-user\"; accepted: a list of up to 64 "
         "users of this "
         "machine, by name or by number up to 4294967294, such as [\"root\"]"},
        {"an_unknown_group", attach_with("groups = [\"no-such-group\"]"),
         "f.toml:9: attach.groups = [...]: this machine has no group \"no-such-group\"; accepted: a list of up to 64 "
         "groups of this "
         "machine, by name or by number up to 4294967294, such as [\"root\"]"},
        {"an_unknown_owner", attach_with("owner = \"no-such-user\""),
         "f.toml:9: attach.owner = \"no-such-user\": this machine has no user \"no-such-user\"; accepted: the name of "
         "a user of this "
         "machine, or a number up to 4294967294, or \"\": the daemon's own"},
        {"an_unknown_group_of_the_socket", attach_with("group = \"no-such-group\""),
         "f.toml:9: attach.group = \"no-such-group\": this machine has no group \"no-such-group\"; accepted: the name "
         "of a group of this "
         "machine, or a number up to 4294967294, or \"\": the daemon's own"},
        {"the_user_whose_number_stands_for_none", attach_with("users = [\"4294967295\"]"),
         "f.toml:9: attach.users = [...]: no user has the number 4294967295; accepted: *"},
        {"the_owner_whose_number_stands_for_none", attach_with("owner = \"4294967295\""),
         "f.toml:9: attach.owner = \"4294967295\": no user has the number 4294967295; accepted: *"},
        {"a_number_beyond_those_of_groups", attach_with("group = \"4294967296\""),
         "f.toml:9: attach.group = \"4294967296\": this machine has no group \"4294967296\"; accepted: *"},
        {"a_socket_that_nobody_may_open", attach_with("mode = \"0000\""),
         "f.toml:9: attach.mode = \"0000\": nobody may write, and whoever attaches must be allowed to; accepted: the "
         "permissions in "
         "octal, as chmod(1) takes them, such as \"0660\""},
        {"a_relative_control_socket", join({kDevice, kWorker, "[control]\npath = \"p.sock\"\n"}),
         "f.toml:8: control.path = \"p.sock\": it is relative, and the daemon's working directory is not the "
         "operator's; accepted: an absolute path of at most 107 characters, or \"\": there is no such socket"},
        {"a_control_group_without_a_socket", join({kDevice, kWorker, "[control]\ngroup = \"root\"\n"}),
         "f.toml:8: control.group = \"root\": this key is for a [control] with a path only; accepted: path"},
        {"an_unknown_control_group",
         join({kDevice, kWorker, "[control]\npath = \"/run/c.sock\"\ngroup = \"no-such-group\"\n"}),
         "f.toml:9: control.group = \"no-such-group\": this machine has no group \"no-such-group\"; accepted: the name "
         "of a group of this machine, or a number up to 4294967294, or \"\": nobody's"},
        {"one_socket_for_both", attach_with("[control]\npath = \"/run/p.sock\""),
         "f.toml:10: control.path = \"/run/p.sock\": processes attach there (attach.path); accepted: another path than "
         "attach.path"},
        {"a_socket_that_may_only_be_read", attach_with("mode = \"0444\""),
         "f.toml:9: attach.mode = \"0444\": nobody may write, and whoever attaches must be allowed to; accepted: *"},
        {"two_devices_of_a_name", join({kDevice, kDevice, kWorker}),
         "f.toml:5: device[1].name = \"d\": device[0] has this name already; accepted: a name that no other "
         "[[device]] has"},
        {"two_workers_of_a_name", join({kDevice, kWorker, "[[worker]]\nname = \"w\"\ncore = 3\n"}),
         "f.toml:8: worker[1].name = \"w\": worker[0] has this name already; accepted: a name that no other "
         "[[worker]] has"},
        {"two_services_of_a_name", join({kDevice, kWorker, kEcho, "address = \"a\"\n", kEcho, "address = \"b\"\n"}),
         "f.toml:14: service[1].name = \"s\": service[0] has this name already; accepted: a name that no "
         "other [[service]] has"},
        {"a_device_that_is_not_there",
         join({kDevice, "[[device]]\nname = \"e\"\nkind = \"verbs\"\n", kWorker,
               "[[service]]\nname = \"s\"\nkind = \"echo\"\ndevice = \"soft0\"\nworker = \"w\"\naddress = "
               "\"a\"\n"}),
         "f.toml:13: service[0].device = \"soft0\": no [[device]] has this name; accepted: \"d\", \"e\""},
        {"a_worker_that_is_not_there",
         join({kDevice, kWorker,
               "[[service]]\nname = \"s\"\nkind = \"echo\"\ndevice = \"d\"\nworker = \"W\"\naddress = "
               "\"a\"\n"}),
         "f.toml:11: service[0].worker = \"W\": no [[worker]] has this name; accepted: \"w\""},
        {"two_services_at_an_address",
         join({kDevice, kWorker, kEcho, "address = \"a\"\n",
               "[[service]]\nname = \"t\"\nkind = \"memory\"\ndevice = \"d\"\nworker = \"w\"\naddress = "
               "\"a\"\n"}),
         "f.toml:18: service[1].address = \"a\": service[0] listens there already; accepted: an address that "
         "no other service on device \"d\" has"},
        {"an_empty_address", echo_with("address = \"\""),
         "f.toml:12: service[0].address = \"\": it is empty; accepted: on a soft device a word, on a verbs "
         "device a numeric ADDRESS:PORT or [ADDRESS%ZONE]:PORT, such as \"192.0.2.1:7471\" or "
         "\"[fe80::1%eth0]:7471\""},
        {"a_socket_address_on_a_soft_device", echo_with("address = \"192.0.2.1:7471\""),
         "f.toml:12: service[0].address = \"192.0.2.1:7471\": it is not one word, and \"d\" is a soft "
         "device; accepted: a word of letters, digits, '_', '-' and '.', at most 63 characters"},
        {"a_word_on_a_verbs_device", verbs_echo_with("address = \"echo\""),
         "f.toml:12: service[0].address = \"echo\": it has no port, and \"d\" is a verbs device; accepted: a "
         "numeric ADDRESS:PORT or [ADDRESS%ZONE]:PORT, such as \"192.0.2.1:7471\" or "
         "\"[fe80::1%eth0]:7471\""},
        {"a_host_name_on_a_verbs_device", verbs_echo_with("address = \"host.example:7471\""),
         "f.toml:12: service[0].address = \"host.example:7471\": its host is no numeric IPv4 address, and "
         "\"d\" is a verbs device; accepted: a numeric ADDRESS:PORT or [ADDRESS%ZONE]:PORT, such as "
         "\"192.0.2.1:7471\" or \"[fe80::1%eth0]:7471\""},
        {"an_address_without_port", verbs_echo_with("address = \"192.0.2.1\""),
         "f.toml:12: service[0].address = \"192.0.2.1\": it has no port, and \"d\" is a verbs device; "
         "accepted: a numeric ADDRESS:PORT or [ADDRESS%ZONE]:PORT, such as \"192.0.2.1:7471\" or "
         "\"[fe80::1%eth0]:7471\""},
        {"an_address_with_an_empty_port", verbs_echo_with("address = \"192.0.2.1:\""),
         "f.toml:12: service[0].address = \"192.0.2.1:\": it has no port, and \"d\" is a verbs device; "
         "accepted: a numeric ADDRESS:PORT or [ADDRESS%ZONE]:PORT, such as \"192.0.2.1:7471\" or "
         "\"[fe80::1%eth0]:7471\""},
        {"a_port_too_large", verbs_echo_with("address = \"192.0.2.1:65536\""),
         "f.toml:12: service[0].address = \"192.0.2.1:65536\": its port is no number from 0 to 65535, and "
         "\"d\" is a verbs device; accepted: a numeric ADDRESS:PORT or [ADDRESS%ZONE]:PORT, such as "
         "\"192.0.2.1:7471\" or \"[fe80::1%eth0]:7471\""},
        {"an_ipv6_address_without_brackets", verbs_echo_with("address = \"fe80::1:7471\""),
         "f.toml:12: service[0].address = \"fe80::1:7471\": an IPv6 address stands in brackets here, or its "
         "last part is taken for the port, and \"d\" is a verbs device; accepted: a numeric ADDRESS:PORT or "
         "[ADDRESS%ZONE]:PORT, such as \"192.0.2.1:7471\" or \"[fe80::1%eth0]:7471\""},
        {"an_open_bracket", verbs_echo_with("address = \"[fe80::1:7471\""),
         "f.toml:12: service[0].address = \"[fe80::1:7471\": its '[' is not closed, and \"d\" is a verbs "
         "device; accepted: a numeric ADDRESS:PORT or [ADDRESS%ZONE]:PORT, such as \"192.0.2.1:7471\" or "
         "\"[fe80::1%eth0]:7471\""},
        {"an_ipv4_address_in_brackets", verbs_echo_with("address = \"[192.0.2.1]:7471\""),
         "f.toml:12: service[0].address = \"[192.0.2.1]:7471\": between the brackets is no numeric IPv6 "
         "address, and \"d\" is a verbs device; accepted: a numeric ADDRESS:PORT or [ADDRESS%ZONE]:PORT, "
         "such as \"192.0.2.1:7471\" or \"[fe80::1%eth0]:7471\""},
        {"an_ipv4_address_with_zone", verbs_echo_with("address = \"192.0.2.1%eth0:7471\""),
         "f.toml:12: service[0].address = \"192.0.2.1%eth0:7471\": a zone is the name or number of a network "
         "interface, after an IPv6 address in brackets, and \"d\" is a verbs device; accepted: a numeric "
         "ADDRESS:PORT or [ADDRESS%ZONE]:PORT, such as \"192.0.2.1:7471\" or \"[fe80::1%eth0]:7471\""},
        {"an_empty_zone", verbs_echo_with("address = \"[fe80::1%]:7471\""),
         "f.toml:12: service[0].address = \"[fe80::1%]:7471\": a zone is the name or number of a network "
         "interface, after an IPv6 address in brackets, and \"d\" is a verbs device; accepted: a numeric "
         "ADDRESS:PORT or [ADDRESS%ZONE]:PORT, such as \"192.0.2.1:7471\" or \"[fe80::1%eth0]:7471\""},
        {"more_connections_than_qps", join({kDevice, kWorker, kEcho, "address = \"a\"\nconnections_max = 2048\n"}),
         "f.toml:13: service[0].connections_max = 2048: each connection takes a queue pair, and "
         "runtime.qps_max allows fewer; accepted: an integer from 1 to 1024"},
        {"a_depth_beyond_the_cq", echo_with("address = \"a\"\ndepth = 8192"),
         "f.toml:13: service[0].depth = 8192: the completion queues of worker \"w\" (cq_depth) hold fewer; "
         "accepted: an integer from 1 to 4096"},
        {"a_default_depth_beyond_the_cq", join({kDevice, kWorker, "cq_depth = 16\n", kEcho, "address = \"a\"\n"}),
         "f.toml:8: service[0].depth = 64: the completion queues of worker \"w\" (cq_depth) hold fewer; "
         "accepted: an integer from 1 to 16"},
        {"an_echo_service_beyond_the_memory", echo_with("address = \"a\"\nmessage_size_max = \"1MiB\""),
         "f.toml:13: service[0].message_size_max = \"1MiB\": times depth 64 times connections_max 16 it is "
         "1GiB, and memory.size is 64MiB; accepted: what fits into memory.size, which can be up to \"1TiB\""},
        {"a_region_beyond_the_memory", join({kDevice, kWorker, kMemory, "address = \"a\"\nsize = \"1GiB\"\n"}),
         "f.toml:13: service[0].size = \"1GiB\": memory.size is 64MiB; accepted: what fits into memory.size, "
         "which can be up to \"1TiB\""},
        {"more_messages_than_a_completion_ring", echo_with("address = \"a\"\ndepth = 4096\nconnections_max = 1024"),
         "f.toml:13: service[0].depth = 4096: times connections_max 1024 it is 4194304 messages in flight, and a "
         "completion ring holds 1048576; accepted: an integer from 1 to 1024"},
        {"more_connections_together_than_qps",
         join({kDevice, kWorker, kEcho, "address = \"a\"\nconnections_max = 600\nmessage_size_max = \"64B\"\n",
               kSecondMemory, "address = \"b\"\nconnections_max = 600\n"}),
         "f.toml:21: service[1].connections_max = 600: with the services before it that makes 1200 connections, and "
         "runtime.qps_max allows 1024 queue pairs; accepted: up to 1024 for all services together"},
        {"services_beyond_the_memory_together",
         join({kDevice, kWorker, kMemory, "address = \"a\"\nsize = \"40MiB\"\n", kSecondMemory,
               "address = \"b\"\nsize = \"40MiB\"\n"}),
         "f.toml:15: service[1].name = \"t\": its buffers and those of the services before it take 80MiB, and "
         "memory.size is "
         "64MiB; accepted: what fits into memory.size, which can be up to \"1TiB\""},
    };
}

}  // namespace pollcore::bad_files
