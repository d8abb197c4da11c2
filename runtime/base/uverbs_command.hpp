// Commands to the kernel's RDMA core by a context's command descriptor, without libibverbs. Another process than the
// one that has opened the device may give them by ioctl(2) only.
//
// Thread safety: pure, but for the command itself.
#pragma once

#include <sys/ioctl.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_user_ioctl_cmds.h>

namespace pollcore {

/// Carries out a command of the write interface (IB_USER_VERBS_CMD_*). `in` and `out` are its structs of
/// rdma/ib_user_verbs.h; `out` may be null. Returns an errno value, or 0.
template <class In, class Out>
[[nodiscard]] int uverbs_command(int fd, std::uint32_t driver_id, std::uint32_t command, const In& in,
                                 Out* out) noexcept {
    constexpr std::size_t kAttributesMax = 3;
    alignas(ib_uverbs_ioctl_hdr)
        std::array<std::byte, sizeof(ib_uverbs_ioctl_hdr) + kAttributesMax * sizeof(ib_uverbs_attr)>
            request{};
    std::uint16_t count = 0;
    const auto add = [&](std::uint16_t id, std::size_t bytes, std::uint64_t data) {
        ib_uverbs_attr attribute{};
        attribute.attr_id = id;
        attribute.len = static_cast<std::uint16_t>(bytes);
        attribute.flags = UVERBS_ATTR_F_MANDATORY;
        attribute.data = data;
        std::memcpy(&request[sizeof(ib_uverbs_ioctl_hdr) + count++ * sizeof(attribute)], &attribute, sizeof(attribute));
    };
    add(UVERBS_ATTR_WRITE_CMD, sizeof(std::uint64_t), command);
    std::uint64_t in_data = reinterpret_cast<std::uintptr_t>(&in);
    if constexpr (sizeof(in) <= sizeof(in_data)) {  // so small a struct stands in the place of its address
        in_data = 0;
        std::memcpy(&in_data, &in, sizeof(in));
    }
    add(UVERBS_ATTR_CORE_IN, sizeof(in), in_data);
    if (out != nullptr) {
        add(UVERBS_ATTR_CORE_OUT, sizeof(*out), reinterpret_cast<std::uintptr_t>(out));
    }
    ib_uverbs_ioctl_hdr header{};
    header.length = static_cast<std::uint16_t>(sizeof(header) + count * sizeof(ib_uverbs_attr));
    header.object_id = UVERBS_OBJECT_DEVICE;
    header.method_id = UVERBS_METHOD_INVOKE_WRITE;
    header.num_attrs = count;
    header.driver_id = driver_id;
    std::memcpy(request.data(), &header, sizeof(header));
    int result = 0;
    do {
        result = ::ioctl(fd, RDMA_VERBS_IOCTL, request.data());
    } while (result != 0 && errno == EINTR);
    return result == 0 ? 0 : errno;
}

}  // namespace pollcore
