// What a runtime has, for an operator: its workers, devices, sessions, queue pairs and so on, and whose they are.
//
// Thread safety: plain values. Names may come from attached processes: print them by printable() only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "pollcore/flow_control.hpp"
#include "pollcore/handle.hpp"
#include "pollcore/qp_attributes.hpp"
#include "pollcore/queue_pair.hpp"
#include "session/text.hpp"

namespace pollcore {

// In all of them, `process` is the number of the attached process that has the thing; 0: the runtime's own process.

struct ListedWorker {
    std::string name;
    std::uint32_t core = 0;
    int thread = 0;  ///< the kernel's number of its thread
    std::uint64_t sessions = 0;
    std::uint64_t queue_pairs = 0;
    std::uint64_t completion_queues = 0;
};
struct ListedDevice {
    std::string name;
    std::string description;
    std::uint32_t process = 0;  ///< the device was opened once more for this process
    bool lost = false;
};
struct ListedSession {
    std::uint32_t number = 0;
    NameText name;
    std::string worker;
    std::uint32_t process = 0;
    std::uint32_t submission_slots = 0;
    std::uint32_t completion_slots = 0;
    std::uint64_t bytes = 0;  ///< of its rings
};
struct ListedQueuePair {
    std::uint32_t qp_num = 0;
    QpHandle handle;
    NameText name;
    std::string device;
    std::string worker;
    std::uint32_t session = 0;  ///< the first one that may post to it
    std::uint32_t process = 0;
    QpType type = QpType::rc;
    QpState state = QpState::init;
    FlowControl flow = FlowControl::off;
};
struct ListedSharedReceiveQueue {
    std::uint32_t number = 0;
    std::string device;
    std::uint32_t session = 0;
    std::uint32_t process = 0;
    std::uint32_t depth = 0;
    std::uint32_t queue_pairs = 0;
};
struct ListedReceivePool {
    std::uint32_t number = 0;
    std::string device;
    std::uint32_t session = 0;
    std::uint32_t process = 0;
    bool ring = false;         ///< a write ring
    std::uint32_t queues = 0;  ///< queue pairs and shared receive queues that take buffers from it
};
struct ListedListener {
    std::uint64_t number = 0;
    std::string device;
    std::string address;
    std::uint32_t process = 0;
    std::uint64_t waiting = 0;  ///< connection requests that nobody has answered yet
};
struct ListedMemoryRegion {
    std::uint64_t number = 0;
    std::string device;
    std::uint32_t process = 0;
    std::uint64_t bytes = 0;
};

/// "RC", "UC" or "UD".
[[nodiscard]] std::string_view qp_type_name(QpType type) noexcept;
/// The verbs' name of a state: "RESET", "INIT", "RTS", "ERR".
[[nodiscard]] std::string_view qp_state_name(QpState state) noexcept;

}  // namespace pollcore
