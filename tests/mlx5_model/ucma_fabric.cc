// Identifiers, addresses, routes, ports, listeners and options. The conversations are in ucma_talk.cc.
#include "ucma_fabric.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <infiniband/ib.h>

namespace mlx5_model {
namespace {

using State = CmId::State;
using Talk = CmId::Talk;

/// Linux's default range of ports to choose from.
constexpr std::uint16_t kFirstPort = 32768;
constexpr std::uint16_t kLastPort = 60999;
constexpr std::uint16_t kReservedPorts = 1024;
constexpr std::uint32_t kPsnMask = 0xffffff;
constexpr std::uint32_t kFlowLabelMask = 0xfffff;
constexpr std::uint8_t kPathLifeTime = 18;
constexpr std::uint64_t kServiceSpaceMask = ~std::uint64_t{0xffff};

/// The port space of an identifier. Returns 0 if the source is an InfiniBand address whose service ID contains none
/// that the identifier may have.
std::uint16_t space_of(const CmId& id) {
    if (id.source.family() != AF_IB) {
        return id.space;
    }
    sockaddr_ib address{};
    std::memcpy(&address, id.source.data(), sizeof address);
    const std::uint64_t mask = be64toh(address.sib_sid_mask) & kServiceSpaceMask;
    const std::uint64_t service = be64toh(address.sib_sid) & mask;
    for (const std::uint16_t space : {RDMA_PS_IB, RDMA_PS_TCP, RDMA_PS_UDP}) {
        if ((id.space == RDMA_PS_IB || id.space == space) && service == ((std::uint64_t{space} << 16) & mask)) {
            return space;
        }
    }
    return 0;
}

}  // namespace

CmFabric& CmFabric::instance() {
    // Never destroyed: a process may close descriptors until its very end.
    static auto* one = new CmFabric;
    return *one;
}

// Uses the lowest free number, as the kernel does.
CmId& CmFabric::create(CmEvents& events, std::uint64_t uid, std::uint16_t space, std::uint8_t qp_type) {
    auto id = std::make_unique<CmId>();
    for (const auto& [number, other] : ids_) {
        if (number != id->number) {
            break;
        }
        ++id->number;
    }
    id->serial = ++last_serial_;
    id->uid = uid;
    id->events = &events;
    id->space = space;
    id->qp_type = qp_type;
    id->psn = static_cast<std::uint32_t>(random_()) & kPsnMask;
    return *(ids_[id->number] = std::move(id));
}

CmId* CmFabric::find(std::uint32_t number) {
    const auto found = ids_.find(number);
    return found == ids_.end() ? nullptr : found->second.get();
}

CmId* CmFabric::first_of(const CmEvents& events) {
    CmId* first = nullptr;
    for (const auto& [number, id] : ids_) {
        if (id->events == &events && (first == nullptr || id->serial < first->serial)) {
            first = id.get();
        }
    }
    return first;
}

std::uint32_t CmFabric::destroy(CmId& id) {
    leave(id);
    for (const CmEvent& event : id.events->take_back(id)) {
        if (event.request != nullptr && event.request != &id) {
            (void)destroy(*event.request);
        } else if (event.request == &id) {
            ++event.about->backlog;
        }
    }
    const std::uint32_t reported = id.reported;
    ids_.erase(id.number);
    return reported;
}

void CmFabric::migrate(CmId& id, CmEvents& events) {
    for (const CmEvent& event : id.events->take_back(id)) {
        events.push(event);
        if (event.request != nullptr) {
            event.request->events = &events;
        }
    }
    id.events = &events;
}

void CmFabric::remove(const DeviceFacts& device) {
    gone_.insert(&device);
    for (const auto& [number, id] : ids_) {
        if (id->device == &device) {
            tell(*id, CmTold::device_removal);
            id->removed = true;
            leave(*id);
            id->device = nullptr;
            id->bound_space = 0;
        }
    }
}

// --- Ports ---

bool CmFabric::is_free(std::uint16_t space, std::uint16_t port) const {
    return std::none_of(ids_.begin(), ids_.end(), [&](const auto& one) {
        return one.second->bound_space == space && one.second->source.port() == port;
    });
}

long CmFabric::check_port(const CmId& id, std::uint16_t space, bool reuse) const {
    for (const auto& [number, other] : ids_) {
        if (other.get() == &id || other->bound_space != space || other->source.port() != id.source.port()) {
            continue;
        }
        if (other->state != State::listening && reuse && other->reuse) {
            continue;
        }
        if (id.family_only && other->family_only && id.source.family() != other->source.family()) {
            continue;
        }
        if (id.source.is_any() || other->source.is_any()) {
            return -EADDRNOTAVAIL;
        }
        if (id.source.same_host(other->source)) {
            return -EADDRINUSE;
        }
    }
    return 0;
}

long CmFabric::own_port(CmId& id) {
    const std::uint16_t space = space_of(id);
    if (space == 0) {
        return -EPROTONOSUPPORT;
    }
    if (const std::uint16_t port = id.source.port(); port != 0) {
        if (port < kReservedPorts && ::geteuid() != 0) {
            return -EACCES;
        }
        if (const long error = check_port(id, space, id.reuse); error != 0) {
            return error;
        }
        id.bound_space = space;
        return 0;
    }
    constexpr unsigned kPorts = kLastPort - kFirstPort + 1;
    const auto first = static_cast<unsigned>(random_()) % kPorts;
    for (unsigned i = 0; i < kPorts; ++i) {
        const auto port = static_cast<std::uint16_t>(kFirstPort + (first + i) % kPorts);
        if (is_free(space, port)) {
            id.source.set_port(port);
            id.bound_space = space;
            return 0;
        }
    }
    return -EADDRNOTAVAIL;
}

// --- From an address to a route ---

long CmFabric::bind(CmId& id, const CmAddress& source) {
    if (source.size() == 0) {
        return -EAFNOSUPPORT;
    }
    if (id.state != State::idle) {
        return -EINVAL;
    }
    const DeviceFacts* device = nullptr;
    if (!source.is_any()) {
        device = source.device();
        // No RoCE device has an InfiniBand address.
        if (device == nullptr || is_gone(device)) {
            return source.family() == AF_IB || device != nullptr ? -ENODEV : -EADDRNOTAVAIL;
        }
        if (id.space == RDMA_PS_IPOIB) {
            return -EINVAL;
        }
    }
    if (!id.family_only_set) {
        id.family_only = source.family() == AF_INET;
    }
    const CmAddress before = std::exchange(id.source, source);
    if (const long error = own_port(id); error != 0) {
        id.source = before;
        return error;
    }
    id.device = device;
    id.destination = CmAddress::any(source.family());
    id.state = State::bound;
    return 0;
}

// Answers at once, although the kernel would ask the network.
long CmFabric::resolve_address(CmId& id, const std::optional<CmAddress>& source, const CmAddress& destination) {
    if (id.state != State::bound) {
        if (const long error = bind(id, source ? *source : CmAddress::any(destination.family())); error != 0) {
            return error;
        }
    }
    id.destination = destination;
    if (id.source.family() != destination.family() || destination.family() == AF_IB) {
        return -EINVAL;
    }
    const DeviceFacts* remote = destination.device();
    if (destination.is_any()) {
        const auto here =
            std::find_if(devices().begin(), devices().end(), [&](const DeviceFacts& one) { return !is_gone(&one); });
        remote = id.device != nullptr ? id.device : here == devices().end() ? nullptr : &*here;
    }
    if (remote == nullptr || is_gone(remote)) {
        // If the identifier has a device, the route is known, but no neighbour answers.
        tell(id, CmTold::addr_error, id.device != nullptr ? -ETIMEDOUT : -ENODEV);
        return 0;
    }
    id.remote = remote;
    if (destination.is_any()) {
        id.destination = destination.at(CmAddress::of(*remote, destination.family()));
    }
    if (id.device == nullptr) {
        id.device = remote;
        id.source = id.source.at(CmAddress::of(*remote, destination.family()));
    }
    id.state = State::address_resolved;
    tell(id, CmTold::addr_resolved);
    return 0;
}

long CmFabric::resolve_route(CmId& id, std::uint32_t timeout_ms) {
    if (timeout_ms == 0 || id.state != State::address_resolved) {
        return -EINVAL;
    }
    CmPath path;
    path.flow_label = (id.source.port() * 31u + id.destination.port()) & kFlowLabelMask;
    path.traffic_class = id.tos;
    path.life_time = id.timeout.value_or(0) != 0 ? static_cast<std::uint8_t>(*id.timeout - 1) : kPathLifeTime;
    id.path = path;
    id.state = State::route_resolved;
    tell(id, CmTold::route_resolved);
    return 0;
}

// --- Listening ---

long CmFabric::listen(CmId& id, std::uint32_t backlog) {
    if (id.state != State::bound) {
        if (const long error = bind(id, CmAddress::any(AF_INET)); error != 0) {
            return error;
        }
    }
    if (id.reuse) {
        if (const long error = check_port(id, id.bound_space, false); error != 0) {
            return error;
        }
    }
    id.backlog = backlog;
    id.state = State::listening;
    if (id.device != nullptr) {
        id.talk = Talk::listening;
    }
    return 0;
}

CmId* CmFabric::listener_for(const CmId& from) {
    const CmAddress& to = from.destination;
    for (const auto& [number, id] : ids_) {
        if (id->state != State::listening || id->removed || id->bound_space != from.space ||
            id->source.port() != to.port()) {
            continue;
        }
        if (id->device != nullptr && id->device != from.remote) {
            continue;
        }
        const bool any = id->source.is_any();
        if ((any && !id->family_only) || (id->source.family() == to.family() && (any || id->source.same_host(to)))) {
            return id.get();
        }
    }
    return nullptr;
}

// --- Options ---

long CmFabric::set_option(CmId& id, std::uint32_t name, std::span<const std::uint8_t> value) {
    const bool is_byte = name == RDMA_OPTION_ID_TOS || name == RDMA_OPTION_ID_ACK_TIMEOUT;
    if (!is_byte && name != RDMA_OPTION_ID_REUSEADDR && name != RDMA_OPTION_ID_AFONLY) {
        return -ENOSYS;
    }
    if (value.size() != (is_byte ? sizeof(std::uint8_t) : sizeof(int))) {
        return -EINVAL;
    }
    int number = value[0];
    if (!is_byte) {
        std::memcpy(&number, value.data(), sizeof number);
    }
    switch (name) {
        case RDMA_OPTION_ID_TOS: id.tos = value[0]; return 0;
        case RDMA_OPTION_ID_ACK_TIMEOUT:
            if (id.qp_type != IB_UVERBS_QPT_RC && id.qp_type != IB_UVERBS_QPT_XRC_INI) {
                return -EINVAL;
            }
            id.timeout = value[0];
            return 0;
        case RDMA_OPTION_ID_REUSEADDR:
            if (id.state != State::idle && !(number != 0 && id.state != State::listening)) {
                return -EINVAL;
            }
            id.reuse = number != 0;
            return 0;
        default:
            if (id.state != State::idle && id.state != State::bound) {
                return -EINVAL;
            }
            id.family_only_set = true;
            id.family_only = number != 0;
            return 0;
    }
}

}  // namespace mlx5_model
