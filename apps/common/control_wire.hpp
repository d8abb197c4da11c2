// What pollctl and pollcored say to each other at the control socket.
//
// The socket is a SOCK_SEQPACKET socket (unix(7)). A connection carries one command. The client sends one packet with a
// JSON object:
//   {"protocol": 1, "command": "list", "kind": "workers"}
// The daemon answers with a JSON object, in as many packets as it takes, and closes the connection:
//   {"protocol": 1, "result": {...}}
//   {"protocol": 1, "error": {"code": "refused", "text": "there is no process 7"}}
// In strings each byte that is not printable ASCII is \xNN, and " and \ have a backslash before them: a program may
// have chosen the name.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace pollcore::control_wire {

inline constexpr unsigned kProtocol = 1;
/// The largest command, in bytes.
inline constexpr std::size_t kCommandMax = 4096;
/// The largest packet of an answer, in bytes. It fits into the smallest buffer that the kernel gives a socket.
inline constexpr std::size_t kPacketMax = 32 * 1024;

/// What `list` can list. The names are those of the arrays in its result, with '_' for '-'.
inline constexpr std::array<std::string_view, 10> kKinds{
    "workers",       "devices",   "services",      "processes", "sessions", "queue-pairs", "shared-receive-queues",
    "receive-pools", "listeners", "memory-regions"};

// The codes of errors.
inline constexpr std::string_view kBadCommand = "bad_command";      ///< the daemon does not understand it
inline constexpr std::string_view kRefused = "refused";             ///< it cannot be done; the text says why
inline constexpr std::string_view kNotPermitted = "not_permitted";  ///< this user may not give commands
inline constexpr std::string_view kBusy = "busy";                   ///< too many commands at the same time

}  // namespace pollcore::control_wire
