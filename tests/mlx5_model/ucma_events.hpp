// The unread events of one descriptor of rdma_cm.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

// Must be included first, because the kernel's header leaves out the definitions that netinet/in.h has made.
#include <netinet/in.h>

#include <rdma/rdma_user_cm.h>

namespace mlx5_model {

struct CmId;

/// The kinds of events. librdmacm's header has the same numbers, but it cannot be included together with the kernel's
/// header.
enum class CmTold : std::uint32_t {
    addr_resolved,
    addr_error,
    route_resolved,
    route_error,
    connect_request,
    connect_response,
    connect_error,
    unreachable,
    rejected,
    established,
    disconnected,
    device_removal,
    multicast_join,
    multicast_error,
    addr_change,
    timewait_exit,
};

constexpr std::uint32_t number_of(CmTold told) {
    return static_cast<std::uint32_t>(told);
}

struct CmEvent {
    /// the identifier whose `reported` counts the event; a connection request counts for the listener
    CmId* about = nullptr;
    CmId* request = nullptr;  ///< the identifier that was made for a connection request
    rdma_ucm_event_resp answer{};
};

/// Callers hold the CmFabric's lock. The descriptor is an eventfd that is readable as long as there are events, so the
/// kernel itself implements poll(2).
class CmEvents {
public:
    /// Throws std::system_error if there is no free descriptor.
    CmEvents();

    /// The program that gets the descriptor owns and closes it.
    [[nodiscard]] int descriptor() const noexcept { return descriptor_; }
    [[nodiscard]] bool empty() const noexcept { return events_.empty(); }
    void push(const CmEvent& event);
    [[nodiscard]] const CmEvent& front() const { return events_.front(); }
    void pop();
    /// Removes the events about this identifier, and the connection request for which the identifier was made. Returns
    /// the events in their order.
    std::vector<CmEvent> take_back(const CmId& id);
    /// Waits until there may be an event, and returns 0 or -errno, such as -EAGAIN. Call without the lock.
    [[nodiscard]] long wait() const;

private:
    void drained();

    int descriptor_;
    std::deque<CmEvent> events_;
};

}  // namespace mlx5_model
