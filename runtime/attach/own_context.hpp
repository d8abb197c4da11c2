// A device's context that a daemon has opened for this process alone: by its command descriptor this process registers
// any memory of its own, wherever it lies. The kernel pins the pages, within this process's RLIMIT_MEMLOCK, and the
// keys are valid in the daemon's queue pairs of this process.
//
// A copy of the descriptor keeps the context alive, and with it the daemon's queue pairs, even after the daemon's
// death. So end() deregisters each region before it closes the descriptor: from then on no device writes to them,
// whoever has a copy. In a forked child the descriptor is closed at once. Only a child of fork(2) between the arrival
// of the descriptor and the constructor keeps it.
//
// Thread safety: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>

#include "base/unique_fd.hpp"
#include "pollcore/memory.hpp"

namespace pollcore {

class OwnContext {
public:
    struct Region {
        std::uint32_t handle = 0;  ///< the kernel's, for deregister()
        std::uint32_t lkey = 0;
        std::uint32_t rkey = 0;
    };

    /// Takes `command`, a descriptor that close-on-exec is set for.
    OwnContext(UniqueFd command, std::uint32_t driver_id);
    ~OwnContext();
    OwnContext(const OwnContext&) = delete;
    OwnContext& operator=(const OwnContext&) = delete;

    /// Registers memory (ibv_reg_mr_iova(3)). `pd` is ibv_pd::handle in the daemon. Throws Error: ECONNRESET after
    /// end(), or the kernel's error.
    [[nodiscard]] Region register_memory(std::uint32_t pd, const void* data, std::size_t bytes, std::uint64_t iova,
                                         const Access& access);
    /// Registers a range of a dma-buf (ibv_reg_dmabuf_mr(3)). As register_memory(), and throws EOPNOTSUPP if the device
    /// takes none.
    [[nodiscard]] Region register_dmabuf(std::uint32_t pd, const DmabufRange& range, std::uint64_t iova,
                                         const Access& access);
    /// Throws the kernel's error; the region is then as before. Does nothing after end().
    void deregister(std::uint32_t handle);
    /// Deregisters all regions, and closes the descriptor.
    void end() noexcept;

private:
    /// Registers by `call`, which sets a Region and returns an errno value or 0.
    template <class Call>
    Region register_by(const char* what, std::size_t bytes, Call&& call);
    [[nodiscard]] int dereg_mr(std::uint32_t handle) const noexcept;

    const std::uint32_t driver_id_;
    std::mutex mutex_;
    UniqueFd command_;
    std::set<std::uint32_t> regions_;
};

}  // namespace pollcore
