// The list of devices, and what a device, its port and their tables are.
#include "served_device.hpp"

#include <arpa/inet.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>

#include "conversions.hpp"
#include "exported.hpp"
#include "genuine.hpp"
#include "opened_contexts.hpp"
#include "opened_device.hpp"
#include "refused_call.hpp"
#include "served_posts.hpp"

namespace pollcore::served {
namespace {

// The kernel's devices that are listed: those that the daemon does not serve.
bool is_hidden(const ibv_device& kernel, const std::vector<Device*>& served) noexcept {
    return !lists_beside() && std::any_of(served.begin(), served.end(), [&](const Device* one) {
        return one->kernel && std::string_view(one->verbs.name) == kernel.name;
    });
}

Opened* open(Device& device) {
    auto opened = std::make_unique<Opened>();
    opened->device = &device;
    opened->attachment = &daemon();
    ibv_context& context = opened->verbs.context;
    context.device = &device.verbs;
    context.cmd_fd = -1;
    context.num_comp_vectors = 1;
    pthread_mutex_init(&context.mutex, nullptr);
    context.async_fd = ::eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
    if (context.async_fd < 0) {
        throw Error(errno, "making the descriptor of a device's events");
    }
    install(opened->verbs);
    try {
        add_context(*opened);
    } catch (...) {
        (void)::close(context.async_fd);
        throw;
    }
    return opened.release();
}

// Copies as much of `from` as the caller's structure has room for: the caller may be older or newer than this library.
template <class T>
void copy_out(const T& from, void* to, std::size_t size) noexcept {
    std::memset(to, 0, size);
    std::memcpy(to, &from, std::min(size, sizeof from));
}

ibv_gid_entry to_entry(const GidAttributes& from, std::uint8_t port_num) noexcept {
    ibv_gid_entry to{};
    std::memcpy(to.gid.raw, from.gid.data(), sizeof to.gid.raw);
    to.gid_index = from.gid_index;
    to.port_num = port_num;
    to.gid_type = static_cast<std::uint32_t>(from.gid_type);
    to.ndev_ifindex = from.ndev_ifindex;
    return to;
}

// Throws Error: EINVAL for another port, ENODATA for an entry that is not in use.
GidAttributes gid_at(ibv_context* context, std::uint32_t port_num, std::uint32_t index) {
    const Opened& opened = of(context);
    if (port_num != opened.device->port_num) {
        throw Error(EINVAL, "the device's configuration names another port");
    }
    const auto gids = opened.attachment->gids(opened.device->name);
    const auto found = std::find_if(gids.begin(), gids.end(), [&](const auto& one) { return one.gid_index == index; });
    if (found == gids.end()) {
        throw Error(ENODATA, "the entry of the GID table is not in use");
    }
    return *found;
}

std::uint32_t gid_table_length(ibv_context* context) {
    const Opened& opened = of(context);
    return opened.attachment->query_port(opened.device->name).gid_tbl_len;
}

}  // namespace

int query_port(ibv_context* context, std::uint8_t port_num, ibv_port_attr* attr, std::size_t size) noexcept {
    return error_of("ibv_query_port()", [&] {
        const Opened& opened = of(context);
        if (port_num != opened.device->port_num) {
            throw Error(EINVAL, "the device's configuration names another port");
        }
        copy_out(to_port_attr(opened.attachment->query_port(opened.device->name)), attr, size);
    });
}

int query_device_ex(ibv_context* context, const ibv_query_device_ex_input* input, ibv_device_attr_ex* attr,
                    std::size_t size) noexcept {
    if (input != nullptr && input->comp_mask != 0) {
        return EINVAL;
    }
    return error_of("ibv_query_device_ex()", [&] {
        const Opened& opened = of(context);
        const DeviceAttributes from = as_served(opened.attachment->query_device(opened.device->name));
        ibv_device_attr_ex to{};
        to.orig_attr = to_device_attr(from);
        to.completion_timestamp_mask = from.completion_timestamp_mask;
        to.hca_core_clock = from.hca_core_clock;
        to.device_cap_flags_ex = from.device_cap_flags;
        to.phys_port_cnt_ex = from.phys_port_cnt;
        copy_out(to, attr, size);
    });
}

// Only the provider can read the device's clock.
int query_rt_values(ibv_context*, ibv_values_ex*) noexcept {
    return EOPNOTSUPP;
}

}  // namespace pollcore::served

using namespace pollcore::served;

POLLCORE_VERBS_EXPORT ibv_device** ibv_get_device_list(int* count) {
    const std::vector<Device*> served = served_devices();
    int kernels = 0;
    // Without the kernel's modules the genuine function returns a null pointer.
    ibv_device** const genuine = POLLCORE_GENUINE(ibv_get_device_list)(&kernels);
    const auto all = genuine == nullptr ? std::size_t{0} : static_cast<std::size_t>(kernels);
    // One more holds the genuine list, which must live as long as this one: see ibv_free_device_list().
    auto** const list = static_cast<ibv_device**>(std::calloc(served.size() + all + 2, sizeof(ibv_device*)));
    if (list == nullptr) {
        if (genuine != nullptr) {
            POLLCORE_GENUINE(ibv_free_device_list)(genuine);
        }
        return failed<ibv_device**>(ENOMEM, nullptr);
    }
    list[0] = reinterpret_cast<ibv_device*>(genuine);
    ibv_device** const begin = list + 1;
    ibv_device** end = begin;
    for (Device* one : served) {
        *end++ = &one->verbs;
    }
    for (std::size_t i = 0; i < all; ++i) {
        if (!is_hidden(*genuine[i], served)) {
            *end++ = genuine[i];
        }
    }
    if (count != nullptr) {
        *count = static_cast<int>(end - begin);
    }
    return begin;
}

POLLCORE_VERBS_EXPORT void ibv_free_device_list(ibv_device** begin) {
    if (begin == nullptr) {
        return;
    }
    ibv_device** const list = begin - 1;
    if (auto** const genuine = reinterpret_cast<ibv_device**>(list[0]); genuine != nullptr) {
        POLLCORE_GENUINE(ibv_free_device_list)(genuine);
    }
    std::free(list);
}

POLLCORE_VERBS_EXPORT const char* ibv_get_device_name(ibv_device* device) {
    return device->name;
}

POLLCORE_VERBS_EXPORT __be64 ibv_get_device_guid(ibv_device* device) {
    const Device* const ours = served_device(device);
    return ours == nullptr ? POLLCORE_GENUINE(ibv_get_device_guid)(device) : ours->attributes.node_guid;
}

POLLCORE_VERBS_EXPORT int ibv_get_device_index(ibv_device* device) {
    const Device* const ours = served_device(device);
    return ours == nullptr ? POLLCORE_GENUINE(ibv_get_device_index)(device) : ours->index;
}

POLLCORE_VERBS_EXPORT ibv_context* ibv_open_device(ibv_device* device) {
    Device* const ours = served_device(device);
    if (ours == nullptr) {
        return POLLCORE_GENUINE(ibv_open_device)(device);
    }
    return made_by("ibv_open_device()", [&]() -> ibv_context* { return &open(*ours)->verbs.context; });
}

POLLCORE_VERBS_EXPORT int ibv_close_device(ibv_context* context) {
    if (!is_ours(context)) {
        return POLLCORE_GENUINE(ibv_close_device)(context);
    }
    Opened& opened = of(context);
    remove_context(opened);
    (void)::close(context->async_fd);
    pthread_mutex_destroy(&context->mutex);
    delete &opened;
    return 0;
}

POLLCORE_VERBS_EXPORT ibv_context* ibv_import_device(int cmd_fd) {
    return POLLCORE_GENUINE(ibv_import_device)(cmd_fd);
}

POLLCORE_VERBS_EXPORT int ibv_query_device(ibv_context* context, ibv_device_attr* attr) {
    if (!is_ours(context)) {
        return POLLCORE_GENUINE(ibv_query_device)(context, attr);
    }
    return error_of("ibv_query_device()", [&] {
        *attr = to_device_attr(as_served(of(context).attachment->query_device(of(context).device->name)));
    });
}

POLLCORE_VERBS_EXPORT int ibv_query_port(ibv_context* context, std::uint8_t port_num, _compat_ibv_port_attr* attr) {
    if (!is_ours(context)) {
        return POLLCORE_GENUINE(ibv_query_port)(context, port_num, attr);
    }
    // An older form of the structure, without the last member.
    return query_port(context, port_num, reinterpret_cast<ibv_port_attr*>(attr),
                      offsetof(ibv_port_attr, port_cap_flags2));
}

POLLCORE_VERBS_EXPORT int ibv_query_gid(ibv_context* context, std::uint8_t port_num, int index, ibv_gid* gid) {
    if (!is_ours(context)) {
        return POLLCORE_GENUINE(ibv_query_gid)(context, port_num, index, gid);
    }
    const int error = error_of("ibv_query_gid()", [&] {
        // An entry that is not in use has the GID 0.
        if (index < 0 || static_cast<std::uint32_t>(index) >= gid_table_length(context)) {
            throw pollcore::Error(EINVAL, "the GID table has no such entry");
        }
        *gid = {};
        for (const auto& one : of(context).attachment->gids(of(context).device->name)) {
            if (one.gid_index == static_cast<std::uint32_t>(index) && port_num == of(context).device->port_num) {
                std::memcpy(gid->raw, one.gid.data(), sizeof gid->raw);
            }
        }
    });
    return error == 0 ? 0 : failed(error, -1);
}

POLLCORE_VERBS_EXPORT int _ibv_query_gid_ex(ibv_context* context, std::uint32_t port_num, std::uint32_t gid_index,
                                            ibv_gid_entry* entry, std::uint32_t flags, std::size_t entry_size) {
    if (!is_ours(context)) {
        return POLLCORE_GENUINE(_ibv_query_gid_ex)(context, port_num, gid_index, entry, flags, entry_size);
    }
    if (flags != 0) {
        return EOPNOTSUPP;
    }
    try {
        copy_out(to_entry(gid_at(context, port_num, gid_index), of(context).device->port_num), entry, entry_size);
        return 0;
    } catch (const pollcore::Error& error) {
        return error.code().value();  // programs look for the last entry in this way, so it is not told
    } catch (const std::exception&) {
        return ENOMEM;
    }
}

POLLCORE_VERBS_EXPORT ssize_t _ibv_query_gid_table(ibv_context* context, ibv_gid_entry* entries,
                                                   std::size_t max_entries, std::uint32_t flags,
                                                   std::size_t entry_size) {
    if (!is_ours(context)) {
        return POLLCORE_GENUINE(_ibv_query_gid_table)(context, entries, max_entries, flags, entry_size);
    }
    if (flags != 0) {
        return -EOPNOTSUPP;
    }
    ssize_t found = 0;
    const int error = error_of("ibv_query_gid_table()", [&] {
        const auto gids = of(context).attachment->gids(of(context).device->name);
        if (gids.size() > max_entries) {
            throw pollcore::Error(EINVAL, "the caller has no room for the GID table");
        }
        for (const auto& one : gids) {
            copy_out(to_entry(one, of(context).device->port_num),
                     reinterpret_cast<char*>(entries) + static_cast<std::size_t>(found) * entry_size, entry_size);
            ++found;
        }
    });
    return error == 0 ? found : -error;
}

// Libraries of rdma-core, such as librdmacm, ask in this way. The numbers of this enumeration differ from ibv_gid_type:
// RoCE v1 and InfiniBand are one.
POLLCORE_VERBS_EXPORT int ibv_query_gid_type(ibv_context* context, std::uint8_t port_num, unsigned index,
                                             unsigned* type) {
    if (!is_ours(context)) {
        using Function = int (*)(ibv_context*, std::uint8_t, unsigned, unsigned*);
        return reinterpret_cast<Function>(need_genuine("ibv_query_gid_type"))(context, port_num, index, type);
    }
    const int error = error_of("ibv_query_gid_type()", [&] {
        *type = gid_at(context, port_num, index).gid_type == pollcore::GidType::roce_v2 ? 1 : 0;
    });
    return error == 0 ? 0 : failed(error, -1);
}

POLLCORE_VERBS_EXPORT int ibv_query_pkey(ibv_context* context, std::uint8_t port_num, int index, __be16* pkey) {
    if (!is_ours(context)) {
        return POLLCORE_GENUINE(ibv_query_pkey)(context, port_num, index, pkey);
    }
    const int error = error_of("ibv_query_pkey()", [&] {
        if (index < 0 || port_num != of(context).device->port_num) {
            throw pollcore::Error(EINVAL, "the P_Key table has no such entry");
        }
        *pkey = htons(of(context).attachment->query_pkey(static_cast<std::uint32_t>(index), of(context).device->name));
    });
    return error == 0 ? 0 : failed(error, -1);
}

POLLCORE_VERBS_EXPORT int ibv_get_pkey_index(ibv_context* context, std::uint8_t port_num, __be16 pkey) {
    if (!is_ours(context)) {
        return POLLCORE_GENUINE(ibv_get_pkey_index)(context, port_num, pkey);
    }
    int found = -1;
    const int error = error_of("ibv_get_pkey_index()", [&] {
        const Opened& opened = of(context);
        const std::uint32_t length = opened.attachment->query_port(opened.device->name).pkey_tbl_len;
        for (std::uint32_t i = 0; i < length && found < 0; ++i) {
            if (htons(opened.attachment->query_pkey(i, opened.device->name)) == pkey) {
                found = static_cast<int>(i);
            }
        }
        if (found < 0) {
            throw pollcore::Error(EINVAL, "the P_Key table has no such key");
        }
    });
    return error == 0 ? found : failed(error, -1);
}
