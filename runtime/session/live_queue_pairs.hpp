// The open queue pairs of a process. A session that has no share of a queue pair looks here to learn whether the queue
// pair exists, because its worker reports only queue pairs of which the session has a share.
//
// Thread safety: any.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

#include "pollcore/handle.hpp"
#include "pollcore/limits.hpp"

namespace pollcore {

class LiveQueuePairs {
public:
    LiveQueuePairs() : generations_(static_cast<std::uint16_t*>(std::calloc(kQpsMax, sizeof(std::uint16_t)))) {
        if (generations_ == nullptr) {
            throw std::bad_alloc();
        }
    }

    void add(QpHandle qp) noexcept { __atomic_store_n(&generations_[qp.index], qp.generation, __ATOMIC_RELAXED); }
    void remove(QpHandle qp) noexcept {
        // Another queue pair may have the index by now.
        std::uint16_t generation = qp.generation;
        __atomic_compare_exchange_n(&generations_[qp.index], &generation, std::uint16_t{0}, false, __ATOMIC_RELAXED,
                                    __ATOMIC_RELAXED);
    }
    [[nodiscard]] bool has(QpHandle qp) const noexcept {
        return qp.valid() && __atomic_load_n(&generations_[qp.index], __ATOMIC_RELAXED) == qp.generation;
    }

private:
    struct Free {
        void operator()(std::uint16_t* memory) const noexcept { std::free(memory); }
    };
    // The generation of the open queue pair at each index; 0: there is none. Allocated by calloc(), so that pages that
    // are never written take no memory.
    std::unique_ptr<std::uint16_t[], Free> generations_;
};

}  // namespace pollcore
