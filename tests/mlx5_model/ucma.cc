// Carries out the commands of librdmacm, as drivers/infiniband/core/ucma.c of Linux 6.1 does.
#include "ucma.hpp"

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>

#include <infiniband/ib.h>
#include <infiniband/sa.h>
#include <infiniband/verbs.h>

#include "device_files.hpp"
#include "file.hpp"
#include "ucma_fabric.hpp"

namespace mlx5_model {
namespace {

constexpr std::uint32_t kBacklogMax = 1024;
constexpr std::uint16_t kDefaultPartition = 0xffff;
constexpr std::uint8_t kExactly = 2;
constexpr std::uint8_t kVendorOptionNotSupported = 35;
constexpr std::uint8_t kConsumerDefined = 28;
constexpr std::uint32_t kOptionMax = 1u << 22;

/// The part of a command after its header.
struct Input {
    const std::uint8_t* data = nullptr;
    std::size_t size = 0;
    std::size_t room = 0;  ///< bytes for the answer
};

template <class Command>
bool read_command(const Input& in, Command& command, std::size_t least = sizeof(Command)) {
    if (in.size < least) {
        return false;
    }
    std::memcpy(&command, in.data, std::min(in.size, sizeof command));
    return true;
}

long copy_out(std::uint64_t to, const void* answer, std::size_t size) {
    if (to == 0) {
        return -EFAULT;
    }
    std::memcpy(reinterpret_cast<void*>(static_cast<std::uintptr_t>(to)), answer, size);
    return 0;
}

template <class Answer>
long write_answer(std::uint64_t to, const Answer& answer, std::size_t room = sizeof(Answer)) {
    return copy_out(to, &answer, std::min(room, sizeof answer));
}

/// Returns an empty value if the size does not fit the family.
template <class Storage>
std::optional<CmAddress> address(const Storage& storage, std::size_t size) {
    sa_family_t family = 0;
    std::memcpy(&family, &storage, sizeof family);
    if (size == 0 || size != address_size(family)) {
        return std::nullopt;
    }
    return CmAddress(&storage);
}

std::optional<CmAddress> ip_address(const sockaddr_in6& storage) {
    const sa_family_t family = storage.sin6_family;
    return family == AF_INET || family == AF_INET6 ? std::optional(CmAddress(&storage)) : std::nullopt;
}

std::uint32_t index_of(const DeviceFacts& device) {
    return static_cast<std::uint32_t>(&device - devices().data());
}

/// The GID that RoCE derives from an address.
ibv_gid gid_of(const CmAddress& address) {
    ibv_gid gid{};
    if (address.family() == AF_INET6) {
        sockaddr_in6 v6{};
        std::memcpy(&v6, address.data(), sizeof v6);
        std::memcpy(gid.raw, &v6.sin6_addr, sizeof gid.raw);
    } else if (address.family() == AF_INET) {
        sockaddr_in v4{};
        std::memcpy(&v4, address.data(), sizeof v4);
        gid.raw[10] = gid.raw[11] = 0xff;
        std::memcpy(gid.raw + 12, &v4.sin_addr, sizeof v4.sin_addr);
    }
    return gid;
}

/// One end as an InfiniBand address.
sockaddr_ib infiniband_address(const CmId& id, const CmAddress& of) {
    sockaddr_ib out{};
    if (of.family() == AF_IB) {
        std::memcpy(&out, of.data(), sizeof out);
        return out;
    }
    out.sib_family = AF_IB;
    if (id.device != nullptr) {
        const ibv_gid gid = gid_of(of);
        std::memcpy(&out.sib_addr, gid.raw, sizeof gid.raw);
    }
    out.sib_sid = htobe64((std::uint64_t{id.space} << 16) + of.port());
    return out;
}

class CmFile : public File {
public:
    [[nodiscard]] CmEvents& events() noexcept { return events_; }

    void describe(struct stat& out) const override {
        out.st_mode = S_IFCHR | 0666;
        out.st_rdev = makedev(kMiscMajor, kRdmaCmMinor);
    }

    long write(const void* from, std::size_t size) override {
        rdma_ucm_cmd_hdr header{};
        if (size < sizeof header) {
            return -EINVAL;
        }
        std::memcpy(&header, from, sizeof header);
        if (header.cmd >= kCommands.size() || header.in + sizeof header > size) {
            return -EINVAL;
        }
        const Command command = kCommands[header.cmd];
        if (command == nullptr) {
            return -ENOSYS;
        }
        const long error =
            (this->*command)({static_cast<const std::uint8_t*>(from) + sizeof header, header.in, header.out});
        return error == 0 ? static_cast<long>(size) : error;
    }

    void closed() override {
        const std::lock_guard guard(fabric_.lock);
        while (CmId* const id = fabric_.first_of(events_)) {
            (void)fabric_.destroy(*id);
        }
    }

private:
    using Command = long (CmFile::*)(const Input&);

    /// Whether the command needs an identifier that has a device.
    enum class Needs { nothing, device };

    /// Calls `action` with the identifier, and with the lock held.
    template <class Action>
    long with_id(std::uint32_t number, Needs needs, Action action) {
        const std::lock_guard guard(fabric_.lock);
        CmId* const id = fabric_.find(number);
        if (id == nullptr || id->events != &events_) {
            return id == nullptr ? -ENOENT : -EINVAL;
        }
        if (id->removed) {
            return -EIO;
        }
        return needs == Needs::device && id->device == nullptr ? -EINVAL : action(*id);
    }

    long create_id(const Input& in) {
        rdma_ucm_create_id command{};
        if (in.room < sizeof(rdma_ucm_create_id_resp)) {
            return -ENOSPC;
        }
        if (!read_command(in, command)) {
            return -EINVAL;
        }
        std::uint8_t type = command.qp_type;
        switch (command.ps) {
            case RDMA_PS_TCP: type = IB_UVERBS_QPT_RC; break;
            case RDMA_PS_UDP:
            case RDMA_PS_IPOIB: type = IB_UVERBS_QPT_UD; break;
            case RDMA_PS_IB: break;
            default: return -EINVAL;
        }
        const std::lock_guard guard(fabric_.lock);
        CmId& id = fabric_.create(events_, command.uid, command.ps, type);
        const long error = write_answer(command.response, rdma_ucm_create_id_resp{id.number});
        if (error != 0) {
            (void)fabric_.destroy(id);
        }
        return error;
    }

    long destroy_id(const Input& in) {
        rdma_ucm_destroy_id command{};
        if (in.room < sizeof(rdma_ucm_destroy_id_resp)) {
            return -ENOSPC;
        }
        if (!read_command(in, command)) {
            return -EINVAL;
        }
        const std::lock_guard guard(fabric_.lock);
        CmId* const id = fabric_.find(command.id);
        if (id == nullptr || id->events != &events_) {
            return id == nullptr ? -ENOENT : -EINVAL;
        }
        return write_answer(command.response, rdma_ucm_destroy_id_resp{fabric_.destroy(*id)});
    }

    long bind_ip(const Input& in) {
        rdma_ucm_bind_ip command{};
        if (!read_command(in, command)) {
            return -EINVAL;
        }
        const auto source = ip_address(command.addr);
        return source ? with_id(command.id, Needs::nothing, [&](CmId& id) { return fabric_.bind(id, *source); })
                      : -EINVAL;
    }

    long bind(const Input& in) {
        rdma_ucm_bind command{};
        if (!read_command(in, command) || command.reserved != 0) {
            return -EINVAL;
        }
        const auto source = address(command.addr, command.addr_size);
        return source ? with_id(command.id, Needs::nothing, [&](CmId& id) { return fabric_.bind(id, *source); })
                      : -EINVAL;
    }

    long resolve_ip(const Input& in) {
        rdma_ucm_resolve_ip command{};
        if (!read_command(in, command)) {
            return -EINVAL;
        }
        const auto source = ip_address(command.src_addr);
        const auto destination = ip_address(command.dst_addr);
        if (!destination || (command.src_addr.sin6_family != 0 && !source)) {
            return -EINVAL;
        }
        return with_id(command.id, Needs::nothing,
                       [&](CmId& id) { return fabric_.resolve_address(id, source, *destination); });
    }

    long resolve_address(const Input& in) {
        rdma_ucm_resolve_addr command{};
        if (!read_command(in, command) || command.reserved != 0) {
            return -EINVAL;
        }
        const auto source = address(command.src_addr, command.src_size);
        const auto destination = address(command.dst_addr, command.dst_size);
        if (!destination || (command.src_size != 0 && !source)) {
            return -EINVAL;
        }
        return with_id(command.id, Needs::nothing,
                       [&](CmId& id) { return fabric_.resolve_address(id, source, *destination); });
    }

    long resolve_route(const Input& in) {
        rdma_ucm_resolve_route command{};
        if (!read_command(in, command)) {
            return -EINVAL;
        }
        return with_id(command.id, Needs::device,
                       [&](CmId& id) { return fabric_.resolve_route(id, command.timeout_ms); });
    }

    long query_route(const Input& in) {
        rdma_ucm_query command{};
        if (in.room < offsetof(rdma_ucm_query_route_resp, ibdev_index)) {
            return -ENOSPC;
        }
        // Older programs send no option.
        if (!read_command(in, command, offsetof(rdma_ucm_query, option))) {
            return -EINVAL;
        }
        return with_id(command.id, Needs::nothing, [&](CmId& id) {
            rdma_ucm_query_route_resp answer{};
            std::memcpy(&answer.src_addr, id.source.data(), std::min(id.source.size(), sizeof answer.src_addr));
            std::memcpy(&answer.dst_addr, id.destination.data(),
                        std::min(id.destination.size(), sizeof answer.dst_addr));
            if (id.device != nullptr) {
                answer.node_guid = id.device->node_guid;
                answer.ibdev_index = index_of(*id.device);
                answer.port_num = kPort;
                const ibv_gid source = gid_of(id.source);
                const ibv_gid destination = gid_of(id.destination);
                ib_user_path_rec& path = answer.ib_route[0];
                std::memcpy(path.sgid, source.raw, sizeof path.sgid);
                std::memcpy(path.dgid, destination.raw, sizeof path.dgid);
                path.pkey = htobe16(kDefaultPartition);
                if (id.path) {
                    answer.num_paths = 1;
                    path.flow_label = htobe32(id.path->flow_label);
                    path.reversible = 1;
                    path.mtu = IBV_MTU_4096;
                    path.hop_limit = kHopLimit;
                    path.traffic_class = id.path->traffic_class;
                    path.mtu_selector = path.rate_selector = path.packet_life_time_selector = kExactly;
                    path.packet_life_time = id.path->life_time;
                }
            }
            return write_answer(command.response, answer, in.room);
        });
    }

    // The partition is 0 in this answer, because the kernel reads the partition from an Ethernet broadcast address.
    // Routes have the default partition.
    static rdma_ucm_query_addr_resp device_answer(const CmId& id) {
        rdma_ucm_query_addr_resp answer{};
        if (id.device != nullptr) {
            answer.node_guid = id.device->node_guid;
            answer.port_num = kPort;
            answer.ibdev_index = index_of(*id.device);
        }
        return answer;
    }

    static long query_address(const CmId& id, std::uint64_t to, std::size_t room) {
        rdma_ucm_query_addr_resp answer = device_answer(id);
        answer.src_size = static_cast<std::uint16_t>(id.source.size());
        answer.dst_size = static_cast<std::uint16_t>(id.destination.size());
        std::memcpy(&answer.src_addr, id.source.data(), id.source.size());
        std::memcpy(&answer.dst_addr, id.destination.data(), id.destination.size());
        return write_answer(to, answer, room);
    }

    static long query_gid(const CmId& id, std::uint64_t to, std::size_t room) {
        rdma_ucm_query_addr_resp answer = device_answer(id);
        const sockaddr_ib source = infiniband_address(id, id.source);
        const sockaddr_ib destination = infiniband_address(id, id.destination);
        answer.src_size = answer.dst_size = sizeof(sockaddr_ib);
        std::memcpy(&answer.src_addr, &source, sizeof source);
        std::memcpy(&answer.dst_addr, &destination, sizeof destination);
        return write_answer(to, answer, room);
    }

    static long query_path(const CmId& id, std::uint64_t to, std::size_t room) {
        struct {
            std::uint32_t num_paths = 0;
            std::uint32_t reserved = 0;
            ibv_path_data path{};
        } answer;
        static_assert(sizeof(ibv_path_data) == sizeof(ib_path_rec_data));
        if (room < sizeof(rdma_ucm_query_path_resp)) {
            return -ENOSPC;
        }
        std::size_t size = sizeof(rdma_ucm_query_path_resp);
        if (id.path) {
            answer.num_paths = 1;
            answer.path.flags = IB_PATH_GMP | IB_PATH_PRIMARY | IB_PATH_BIDIRECTIONAL;
            ibv_path_record& record = answer.path.path;
            record.service_id = htobe64((std::uint64_t{id.space} << 16) + id.destination.port());
            record.sgid = gid_of(id.source);
            record.dgid = gid_of(id.destination);
            record.flowlabel_hoplimit = htobe32(id.path->flow_label << 8 | kHopLimit);
            record.tclass = id.path->traffic_class;
            record.reversible_numpath = 1 << 7;
            record.pkey = htobe16(kDefaultPartition);
            record.mtu = kExactly << 6 | IBV_MTU_4096;
            record.rate = kExactly << 6;
            record.packetlifetime = static_cast<std::uint8_t>(kExactly << 6 | id.path->life_time);
            if (room > size + sizeof answer.path) {
                size += sizeof answer.path;
            }
        }
        return copy_out(to, &answer, size);
    }

    long query(const Input& in) {
        rdma_ucm_query command{};
        if (!read_command(in, command)) {
            return -EINVAL;
        }
        return with_id(command.id, Needs::nothing, [&](CmId& id) -> long {
            const bool fits = in.room >= offsetof(rdma_ucm_query_addr_resp, ibdev_index);
            switch (command.option) {
                case RDMA_USER_CM_QUERY_ADDR: return fits ? query_address(id, command.response, in.room) : -ENOSPC;
                case RDMA_USER_CM_QUERY_PATH: return query_path(id, command.response, in.room);
                case RDMA_USER_CM_QUERY_GID: return fits ? query_gid(id, command.response, in.room) : -ENOSPC;
                default: return -ENOSYS;
            }
        });
    }

    // Older programs do not send the fields after `reserved`.
    long connect(const Input& in) {
        rdma_ucm_connect command{};
        if (!read_command(in, command, offsetof(rdma_ucm_connect, ece)) || command.conn_param.valid == 0) {
            return -EINVAL;
        }
        return with_id(command.id, Needs::device, [&](CmId& id) { return fabric_.connect(id, command); });
    }

    long accept(const Input& in) {
        rdma_ucm_accept command{};
        if (!read_command(in, command, offsetof(rdma_ucm_accept, ece))) {
            return -EINVAL;
        }
        return with_id(command.id, Needs::device, [&](CmId& id) { return fabric_.accept(id, command); });
    }

    long listen(const Input& in) {
        rdma_ucm_listen command{};
        if (!read_command(in, command)) {
            return -EINVAL;
        }
        const auto backlog = static_cast<std::int32_t>(command.backlog);
        const std::uint32_t most = backlog <= 0 || command.backlog > kBacklogMax ? kBacklogMax : command.backlog;
        return with_id(command.id, Needs::nothing, [&](CmId& id) { return fabric_.listen(id, most); });
    }

    long reject(const Input& in) {
        rdma_ucm_reject command{};
        if (!read_command(in, command)) {
            return -EINVAL;
        }
        const std::uint8_t reason = command.reason == 0 ? kConsumerDefined : command.reason;
        if (reason != kConsumerDefined && reason != kVendorOptionNotSupported) {
            return -EINVAL;
        }
        return with_id(command.id, Needs::device, [&](CmId& id) {
            return fabric_.reject(id, reason, {command.private_data, command.private_data_len});
        });
    }

    long disconnect(const Input& in) {
        rdma_ucm_disconnect command{};
        if (!read_command(in, command)) {
            return -EINVAL;
        }
        return with_id(command.id, Needs::device, [&](CmId& id) { return fabric_.disconnect(id); });
    }

    long init_qp_attr(const Input& in) {
        rdma_ucm_init_qp_attr command{};
        if (in.room < sizeof(ib_uverbs_qp_attr)) {
            return -ENOSPC;
        }
        if (!read_command(in, command) || command.qp_state > IBV_QPS_ERR) {
            return -EINVAL;
        }
        return with_id(command.id, Needs::device, [&](CmId& id) {
            ib_uverbs_qp_attr answer{};
            const long error = fabric_.qp_attributes(id, command.qp_state, answer);
            return error != 0 ? error : write_answer(command.response, answer);
        });
    }

    long set_option(const Input& in) {
        rdma_ucm_set_option command{};
        if (!read_command(in, command) || command.optlen > kOptionMax) {
            return -EINVAL;
        }
        return with_id(command.id, Needs::nothing, [&](CmId& id) -> long {
            if (command.level != RDMA_OPTION_ID) {
                return -ENOSYS;
            }
            if (command.optval == 0 && command.optlen != 0) {
                return -EFAULT;
            }
            const auto* value = reinterpret_cast<const std::uint8_t*>(static_cast<std::uintptr_t>(command.optval));
            return fabric_.set_option(id, command.optname, {value, command.optlen});
        });
    }

    long notify(const Input& in) {
        rdma_ucm_notify command{};
        if (!read_command(in, command)) {
            return -EINVAL;
        }
        return with_id(command.id, Needs::device, [&](CmId& id) { return fabric_.notify(id, command.event); });
    }

    // The lock is held while the event is counted, so that a thread that destroys the identifier knows whether the
    // event was handed out.
    long get_event(const Input& in) {
        rdma_ucm_get_event command{};
        if (in.room < offsetof(rdma_ucm_event_resp, reserved)) {
            return -ENOSPC;
        }
        if (!read_command(in, command)) {
            return -EINVAL;
        }
        for (;;) {
            {
                const std::lock_guard guard(fabric_.lock);
                if (!events_.empty()) {
                    const CmEvent event = events_.front();
                    if (const long error = write_answer(command.response, event.answer, in.room); error != 0) {
                        return error;
                    }
                    events_.pop();
                    ++event.about->reported;
                    if (event.request != nullptr) {
                        ++event.about->backlog;
                    }
                    return 0;
                }
            }
            if (const long error = events_.wait(); error != 0) {
                return error;
            }
        }
    }

    long migrate_id(const Input& in) {
        rdma_ucm_migrate_id command{};
        if (in.room < sizeof(rdma_ucm_migrate_resp)) {
            return -ENOSPC;
        }
        if (!read_command(in, command)) {
            return -EINVAL;
        }
        const std::shared_ptr<File> other = attached(static_cast<int>(command.fd));
        auto* const from = dynamic_cast<CmFile*>(other.get());
        if (from == nullptr) {
            struct stat there {};
            return ::fstat(static_cast<int>(command.fd), &there) != 0 ? -ENOENT : -EINVAL;
        }
        return from->with_id(command.id, Needs::nothing, [&](CmId& id) {
            if (from != this) {
                fabric_.migrate(id, events_);
            }
            return write_answer(command.response, rdma_ucm_migrate_resp{id.reported});
        });
    }

    long join_multicast(const Input& in) {
        rdma_ucm_join_mcast command{};
        if (in.room < sizeof(rdma_ucm_create_id_resp)) {
            return -ENOSPC;
        }
        if (!read_command(in, command) || !address(command.addr, command.addr_size) ||
            command.join_flags >= RDMA_MC_JOIN_FLAG_RESERVED) {
            return -EINVAL;
        }
        return with_id(command.id, Needs::device, no_multicast);
    }

    long join_ip_multicast(const Input& in) {
        rdma_ucm_join_ip_mcast command{};
        if (in.room < sizeof(rdma_ucm_create_id_resp)) {
            return -ENOSPC;
        }
        if (!read_command(in, command) || !ip_address(command.addr)) {
            return -EINVAL;
        }
        return with_id(command.id, Needs::device, no_multicast);
    }

    // No multicast group can be joined, so none has this number.
    long leave_multicast(const Input& in) {
        rdma_ucm_destroy_id command{};
        if (in.room < sizeof(rdma_ucm_destroy_id_resp)) {
            return -ENOSPC;
        }
        return read_command(in, command) ? -ENOENT : -EINVAL;
    }

    static long no_multicast(const CmId& id) {
        return id.state == CmId::State::bound || id.state == CmId::State::address_resolved ? -ENOSYS : -EINVAL;
    }

    static const std::array<Command, RDMA_USER_CM_CMD_JOIN_MCAST + 1> kCommands;

    CmFabric& fabric_ = CmFabric::instance();
    CmEvents events_;
};

// Indexed by the number of the command.
const std::array<CmFile::Command, RDMA_USER_CM_CMD_JOIN_MCAST + 1> CmFile::kCommands{
    &CmFile::create_id,
    &CmFile::destroy_id,
    &CmFile::bind_ip,
    &CmFile::resolve_ip,
    &CmFile::resolve_route,
    &CmFile::query_route,
    &CmFile::connect,
    &CmFile::listen,
    &CmFile::accept,
    &CmFile::reject,
    &CmFile::disconnect,
    &CmFile::init_qp_attr,
    &CmFile::get_event,
    nullptr /* GET_OPTION */,
    &CmFile::set_option,
    &CmFile::notify,
    &CmFile::join_ip_multicast,
    &CmFile::leave_multicast,
    &CmFile::migrate_id,
    &CmFile::query,
    &CmFile::bind,
    &CmFile::resolve_address,
    &CmFile::join_multicast,
};

}  // namespace

int open_rdma_cm() {
    try {
        auto file = std::make_shared<CmFile>();
        const int descriptor = file->events().descriptor();
        attach(descriptor, std::move(file));
        return descriptor;
    } catch (const std::system_error& error) {
        return -error.code().value();
    }
}

void remove_from_rdma_cm(const DeviceFacts& device) {
    CmFabric& fabric = CmFabric::instance();
    const std::lock_guard guard(fabric.lock);
    const auto found = std::find_if(devices().begin(), devices().end(),
                                    [&](const DeviceFacts& one) { return one.minor == device.minor; });
    if (found != devices().end()) {
        fabric.remove(*found);
    }
}

}  // namespace mlx5_model
