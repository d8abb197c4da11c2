// The identifiers of rdma_cm, the listeners, and the conversations between two identifiers, as in the kernel's
// drivers/infiniband/core/{cma,cm}.c.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <span>

#include <rdma/ib_user_verbs.h>

#include "hca_fabric.hpp"
#include "ucma_address.hpp"
#include "ucma_events.hpp"

namespace mlx5_model {

struct CmPath {
    std::uint32_t flow_label = 0;
    std::uint8_t traffic_class = 0;
    std::uint8_t life_time = 0;  ///< 4.096 microseconds times two to the power of this
};

struct CmId {
    enum class State { idle, bound, address_resolved, route_resolved, connecting, disconnected, listening };
    /// The states of the identifier's conversation with another identifier. The messages are those of the InfiniBand
    /// architecture, volume 1, chapter 12.
    enum class Talk {
        none,  ///< there was never a conversation
        over,
        listening,
        asked,
        was_asked,
        replied,
        was_replied,
        established,
        left,      ///< has asked to disconnect; waits for the answer
        was_left,  ///< was asked to disconnect; owes the answer
        timewait,
        asked_datagram,
        was_asked_datagram,
    };

    std::uint32_t number = 0;
    std::uint64_t serial = 0;  ///< never used for another identifier
    /// librdmacm's name for the identifier. While it is 0, only the connection request is reported.
    std::uint64_t uid = 0;
    CmEvents* events = nullptr;
    std::uint16_t space = 0;
    std::uint8_t qp_type = 0;

    State state = State::idle;
    bool removed = false;  ///< its device was removed: the identifier can only be destroyed
    CmAddress source;
    CmAddress destination;
    const DeviceFacts* device = nullptr;
    const DeviceFacts* remote = nullptr;
    std::uint16_t bound_space = 0;  ///< port space of the source's port, if the identifier owns that port; otherwise 0
    bool reuse = false;
    bool family_only = false;
    bool family_only_set = false;
    std::uint8_t tos = 0;
    std::optional<std::uint8_t> timeout;
    std::optional<CmPath> path;
    std::uint32_t qkey = 0;
    std::uint32_t backlog = 0;
    std::uint32_t reported = 0;

    Talk talk = Talk::none;
    CmId* peer = nullptr;
    rdma_ucm_connect asked{};  ///< the parameters of the request to the other end
    int asked_times = 0;
    std::uint32_t psn = 0;         ///< PSN of the first packet that this end receives
    std::uint32_t remote_psn = 0;  ///< PSN of the first packet that this end sends
    std::uint32_t qp_num = 0;
    std::uint32_t remote_qp_num = 0;
    std::uint8_t responder_resources = 0;
    std::uint8_t initiator_depth = 0;
    std::uint8_t retry_count = 0;
    std::uint8_t rnr_retry_count = 0;
};

/// Callers hold the lock. A function that returns a long returns 0 or -errno.
class CmFabric {
public:
    static CmFabric& instance();

    std::mutex lock;

    CmId& create(CmEvents& events, std::uint64_t uid, std::uint16_t space, std::uint8_t qp_type);
    /// Returns null if there is no such identifier.
    CmId* find(std::uint32_t number);
    /// Returns the oldest identifier of this descriptor; null if there is none.
    CmId* first_of(const CmEvents& events);
    /// Destroys the identifier, and informs its peer. Returns the number of the identifier's events that the program
    /// has read.
    std::uint32_t destroy(CmId& id);
    void migrate(CmId& id, CmEvents& events);
    void remove(const DeviceFacts& device);

    long bind(CmId& id, const CmAddress& source);
    /// Without a source, a bound identifier keeps its address, and an unbound one binds to any address of the
    /// destination's family.
    long resolve_address(CmId& id, const std::optional<CmAddress>& source, const CmAddress& destination);
    long resolve_route(CmId& id, std::uint32_t timeout_ms);
    long listen(CmId& id, std::uint32_t backlog);
    long connect(CmId& id, const rdma_ucm_connect& command);
    long accept(CmId& id, const rdma_ucm_accept& command);
    long reject(CmId& id, std::uint8_t reason, std::span<const std::uint8_t> data);
    long disconnect(CmId& id);
    long notify(CmId& id, std::uint32_t event);
    long set_option(CmId& id, std::uint32_t name, std::span<const std::uint8_t> value);
    /// Fills `out` with the attributes that move a queue pair to this state.
    long qp_attributes(CmId& id, std::uint32_t state, ib_uverbs_qp_attr& out);

private:
    [[nodiscard]] bool is_gone(const DeviceFacts* device) const { return gone_.contains(device); }

    long check_port(const CmId& id, std::uint16_t space, bool reuse) const;
    long own_port(CmId& id);
    bool is_free(std::uint16_t space, std::uint16_t port) const;
    CmId* listener_for(const CmId& from);
    CmId* stale(const CmId& from);

    void ask(CmId& from);
    void ask_again(CmId& from);
    CmId& answerer(CmId& listener, CmId& from);
    void unreachable(CmId& id, std::int32_t status);
    long reply(CmId& id, const rdma_ucm_accept& command);
    long ready(CmId& id);
    long reply_datagram(CmId& id, std::uint32_t status, std::span<const std::uint8_t> data);
    void leave(CmId& id);
    void enter_timewait(CmId& id);
    static void part(CmId& id);

    void hear_rejection(CmId& id, std::uint32_t reason, std::span<const std::uint8_t> data);
    void hear_leave(CmId& id);
    void hear_left(CmId& id);

    static void tell(CmId& id, CmTold event, std::int32_t status = 0);
    static void tell(CmId& id, rdma_ucm_event_resp answer);

    std::map<std::uint32_t, std::unique_ptr<CmId>> ids_;
    std::set<const DeviceFacts*> gone_;
    std::uint64_t last_serial_ = 0;
    std::mt19937 random_{std::random_device{}()};
};

inline constexpr std::uint8_t kHopLimit = 64;
inline constexpr std::uint8_t kSgidIndex = 1;  ///< RoCE v2
inline constexpr std::uint8_t kPort = 1;

}  // namespace mlx5_model
