// The memory keys of one device: for regions, and for windows onto regions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>

#include <infiniband/verbs.h>

namespace mlx5_model {

class UverbsFile;

/// The request of a UMR WQE.
struct BindRequest {
    std::uint32_t key = 0;  ///< the window's key before the operation
    bool unbind = false;
    bool only_if_free = false;  ///< for a window of type 2: refuse the bind while the window is bound
    bool only_of_qp = false;    ///< for an invalidation: refuse it unless the window is bound to this queue pair
    std::uint32_t new_key = 0;  ///< only its low 8 bits count
    std::uint32_t qpn = 0;      ///< 0xffffff means any queue pair
    int access = 0;
    std::uint64_t start = 0;  ///< the remote address of the window's first byte
    std::uint64_t length = 0;
    std::uint32_t region_key = 0;
    std::uint64_t region_address = 0;
};

/// Not thread-safe: callers hold the fabric's lock.
class MemoryKeys {
public:
    static constexpr std::uint32_t kAnyQp = 0xffffff;
    struct Key {
        std::uint32_t key = 0;  ///< its upper 24 bits are the index
        std::uint32_t pd = 0;
        bool window = false;
    };

    /// Adds a key that belongs to `file`. Returns nullopt if there are too many keys.
    std::optional<std::uint32_t> add_region(const UverbsFile* file, std::uint32_t pd, std::uint64_t start,
                                            std::uint64_t length, std::uint64_t iova, int access);
    std::optional<std::uint32_t> add_window(const UverbsFile* file, std::uint32_t pd, int type);
    /// Removes the key with this index. Returns 0, EINVAL if there is no such key, or EBUSY while a window is bound to
    /// the region.
    int remove(const UverbsFile* file, std::uint32_t index, bool window);
    /// Removes all keys that belong to `file`.
    void remove_all(const UverbsFile* file);
    [[nodiscard]] bool uses(std::uint32_t pd) const;

    /// Returns the address in this process of `length` bytes at `address`. Returns null if the key does not let a queue
    /// pair of this PD and number access these bytes.
    [[nodiscard]] void* local(std::uint32_t key, std::uint64_t address, std::uint64_t length, std::uint32_t pd,
                              int access) const;
    [[nodiscard]] void* remote(std::uint32_t key, std::uint64_t address, std::uint64_t length, std::uint32_t pd,
                               int access, std::uint32_t qpn) const;
    /// Returns false and changes nothing if hardware would answer with an error.
    bool bind(const BindRequest& request, std::uint32_t pd, std::uint32_t qpn);
    /// Unbinds a window at the responder, for a send with invalidate. Returns false if hardware would answer with an
    /// error.
    bool invalidate(std::uint32_t key, std::uint32_t pd, std::uint32_t qpn);

private:
    struct Entry {
        const UverbsFile* file = nullptr;
        std::uint32_t key = 0;
        std::uint32_t pd = 0;
        std::uint64_t start = 0;
        std::uint64_t length = 0;
        std::uint64_t iova = 0;
        int access = 0;
        std::uint32_t windows = 0;  // number of windows that are bound to this region
        // The members below are used by windows only.
        int window_type = 0;
        bool bound = false;
        bool zero_based = false;
        std::uint32_t qpn = kAnyQp;
        std::uint32_t region = 0;  // index of the region that the window is bound to
    };

    static constexpr std::size_t kMost = 1u << 16;
    std::optional<std::uint32_t> add(Entry entry);
    [[nodiscard]] const Entry* find(std::uint32_t key) const;
    void unbind(Entry& window);
    static void* place(const Entry& entry, std::uint64_t address, std::uint64_t length);

    std::unordered_map<std::uint32_t, Entry> entries_;
    std::uint32_t next_index_ = 16;
    std::uint8_t next_variant_ = 0x17;
};

}  // namespace mlx5_model
