// Requests to the kernel's RDMA core by a context's command descriptor, without libibverbs. Another process than the
// one that has opened the device may make them by ioctl(2) only.
//
// Thread safety: each object is used by one thread.
#pragma once

#include <sys/ioctl.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_user_ioctl_cmds.h>

namespace pollcore {

/// A call of a method of one of the kernel's objects (RDMA_VERBS_IOCTL). The values that attributes refer to must exist
/// until send() returns. At most kAttributesMax attributes.
class UverbsRequest {
public:
    static constexpr std::size_t kAttributesMax = 12;

    /// `driver_id` is the number of the kernel's driver (RDMA_DRIVER_*).
    UverbsRequest(std::uint16_t object, std::uint16_t method, std::uint32_t driver_id) noexcept {
        request_.header.object_id = object;
        request_.header.method_id = method;
        request_.header.driver_id = driver_id;
    }

    template <class Value>
    UverbsRequest& in(std::uint16_t id, const Value& value) noexcept {
        static_assert(std::is_trivially_copyable_v<Value>);
        std::uint64_t data = reinterpret_cast<std::uintptr_t>(&value);
        if constexpr (sizeof(value) <=
                      sizeof(data)) {  // the kernel expects so small a value in the place of its address
            data = 0;
            std::memcpy(&data, &value, sizeof(value));
        }
        return add(id, sizeof(value), data);
    }
    template <class Value>
    UverbsRequest& out(std::uint16_t id, Value& value) noexcept {
        static_assert(std::is_trivially_copyable_v<Value>);
        return add(id, sizeof(value), reinterpret_cast<std::uintptr_t>(&value));
    }
    /// Names an object by its handle, or a file by its descriptor.
    UverbsRequest& name(std::uint16_t id, std::uint32_t handle) noexcept { return add(id, 0, handle); }

    /// Returns an errno value, or 0.
    [[nodiscard]] int send(int fd) noexcept {
        request_.header.length =
            static_cast<std::uint16_t>(sizeof(request_.header) + request_.header.num_attrs * sizeof(ib_uverbs_attr));
        int result = 0;
        do {
            result = ::ioctl(fd, RDMA_VERBS_IOCTL, &request_);
        } while (result != 0 && errno == EINTR);
        return result == 0 ? 0 : errno;
    }
    /// After send() has returned 0: the handle that the kernel gave the object of attribute `id`.
    [[nodiscard]] std::uint32_t handle(std::uint16_t id) const noexcept {
        for (const ib_uverbs_attr& attribute : request_.attributes) {
            if (attribute.attr_id == id) {
                return static_cast<std::uint32_t>(attribute.data);
            }
        }
        return 0;
    }

private:
    UverbsRequest& add(std::uint16_t id, std::size_t bytes, std::uint64_t data) noexcept {
        ib_uverbs_attr& attribute = request_.attributes.at(request_.header.num_attrs++);
        attribute.attr_id = id;
        attribute.len = static_cast<std::uint16_t>(bytes);
        attribute.flags = UVERBS_ATTR_F_MANDATORY;
        attribute.data = data;
        return *this;
    }

    // The kernel's header ends with an array without length, which a class cannot contain.
    struct Header {
        std::uint16_t length;
        std::uint16_t object_id;
        std::uint16_t method_id;
        std::uint16_t num_attrs;
        std::uint64_t reserved1;
        std::uint32_t driver_id;
        std::uint32_t reserved2;
    };
    static_assert(sizeof(Header) == sizeof(ib_uverbs_ioctl_hdr) && alignof(Header) == alignof(ib_uverbs_ioctl_hdr));
    struct {
        Header header;
        std::array<ib_uverbs_attr, kAttributesMax> attributes;
    } request_{};
};

/// Begins a command of the write interface (IB_USER_VERBS_CMD_*), to which the caller adds UVERBS_ATTR_CORE_IN, and
/// UVERBS_ATTR_CORE_OUT if there is an answer. Their values are the structs of rdma/ib_user_verbs.h.
[[nodiscard]] inline UverbsRequest uverbs_write(std::uint32_t driver_id, std::uint64_t command) noexcept {
    UverbsRequest request(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE, driver_id);
    request.in(UVERBS_ATTR_WRITE_CMD, command);
    return request;
}

/// Deregisters a region. Returns an errno value, or 0.
[[nodiscard]] inline int uverbs_dereg_mr(int fd, std::uint32_t driver_id, std::uint32_t handle) noexcept {
    const ib_uverbs_dereg_mr asked{.mr_handle = handle};
    return uverbs_write(driver_id, IB_USER_VERBS_CMD_DEREG_MR).in(UVERBS_ATTR_CORE_IN, asked).send(fd);
}

}  // namespace pollcore
