// The attributes of an RDMA_VERBS_IOCTL.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include <rdma/rdma_user_ioctl_cmds.h>

namespace mlx5_model {

/// A value from a command, or nothing. std::optional cannot hold some of the kernel's structures, because they end with
/// an array without length.
template <class Value>
struct Given {
    bool there = false;
    Value value{};
    explicit operator bool() const noexcept { return there; }
    const Value* operator->() const noexcept { return &value; }
    const Value& operator*() const noexcept { return value; }
};

class IoctlAttributes {
public:
    explicit IoctlAttributes(ib_uverbs_ioctl_hdr* header) : header_(header) {}

    [[nodiscard]] ib_uverbs_attr* find(unsigned id) const {
        for (unsigned i = 0; i < header_->num_attrs; ++i) {
            if (header_->attrs[i].attr_id == id) {
                return &header_->attrs[i];
            }
        }
        return nullptr;
    }
    [[nodiscard]] std::size_t size(unsigned id) const {
        const ib_uverbs_attr* attribute = find(id);
        return attribute == nullptr ? 0 : attribute->len;
    }
    /// Returns an empty value if the attribute is missing or shorter than `least` bytes. The kernel refuses such a
    /// command.
    template <class Value>
    [[nodiscard]] Given<Value> get(unsigned id, std::size_t least = sizeof(Value)) const {
        Given<Value> given;
        const ib_uverbs_attr* attribute = find(id);
        if (attribute == nullptr || attribute->len < least) {
            return given;
        }
        // The attribute holds a short value itself, and a pointer to a longer value.
        const void* from = attribute->len <= sizeof attribute->data ? &attribute->data
                                                                    : reinterpret_cast<const void*>(attribute->data);
        std::memcpy(&given.value, from, std::min<std::size_t>(attribute->len, sizeof given.value));
        given.there = true;
        return given;
    }
    /// Writes as much of the answer as the caller has room for, and fills the remaining room with zeros.
    template <class Value>
    void put(unsigned id, const Value& value) const {
        ib_uverbs_attr* attribute = find(id);
        if (attribute == nullptr) {
            return;
        }
        auto* to = reinterpret_cast<std::uint8_t*>(attribute->data);
        std::memset(to, 0, attribute->len);
        std::memcpy(to, &value, std::min<std::size_t>(attribute->len, sizeof value));
        attribute->flags |= UVERBS_ATTR_F_VALID_OUTPUT;
    }

private:
    ib_uverbs_ioctl_hdr* header_;
};

}  // namespace mlx5_model
