// The rings that are compared, behind one interface:
//
//   push<N>(first)        writes up to N items (first, first + 1, …), as far as there is room; returns their number
//   finish()              publishes all items; the writing thread calls it after the last item
//   pop<N>(first, wrong)  reads up to N items, as far as there are any, and checks them with `wrong`
//
// A batch goes through a ring by the ring's own calls for several items, if it has such calls.
//
// Thread safety: one thread calls push and finish, another calls pop.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <stdexcept>

#include <atomic_queue/atomic_queue.h>
#include <boost/lockfree/spsc_queue.hpp>
#include <readerwriterqueue/readerwriterqueue.h>
#include <rte_ring.h>
#include <rte_ring_peek_zc.h>

#include "items.hpp"
#include "pollcore/completion.hpp"
#include "pollcore/limits.hpp"
#include "pollcore/spsc_ring.hpp"
#include "ring_rows.hpp"

namespace pollcore::bench {

/// pollcore's own ring, used as in the runtime: requests are written as a session writes them and read as a worker
/// reads them; completions are written as a worker writes them and read as a session reads them.
template <std::size_t Bytes, std::uint32_t Capacity>
class PollcoreRing {
public:
    static constexpr const char* kName = kOurs;

    explicit PollcoreRing(void* memory) noexcept : memory_(memory) { format_ring<Slot<Bytes>>(memory, Capacity); }

    class Writer {
    public:
        explicit Writer(PollcoreRing& ring) noexcept : ring_(ring.memory_, Capacity) {}
        template <std::size_t N>
        std::size_t push(std::uint64_t first) noexcept {
            if constexpr (N == 1) {
                return ring_.try_push([first](Slot<Bytes>& slot) { return slot.fill(first); });
            }
            const std::size_t n = ring_.reserve(N);
            for (std::size_t i = 0; i < n; ++i) {
                ring_.write(i, [number = first + i](Slot<Bytes>& slot) { return slot.fill(number); });
            }
            if (n > 0) {
                ring_.commit(n);
            }
            return n;
        }
        void finish() noexcept {}
        void prefetch() noexcept { ring_.prefetch(); }

    private:
        RingProducer<Slot<Bytes>> ring_;
    };
    class Reader {
    public:
        explicit Reader(PollcoreRing& ring) noexcept : ring_(ring.memory_, Capacity) {}
        template <std::size_t N>
        std::size_t pop(std::uint64_t first, Differences& wrong) noexcept {
            if (Bytes == sizeof(Completion) && last_burst_ > 2 && ring_.ready()) {
                ring_.prefetch_next(std::min(last_burst_, N));  // as session/completion_inbox.hpp does
            }
            const auto front = ring_.front();
            Differences differences = wrong;
            std::size_t n = 0;
            for (std::uint64_t last = 0; n < N && front.ready(n, last); ++n) {
                differences.see<Bytes>(&ring_.slot(n), first + n);
            }
            wrong = differences;
            if (n > 0) {
                ring_.release(n);
                last_burst_ = n;
            }
            return n;
        }

    private:
        RingConsumer<Slot<Bytes>> ring_;
        std::size_t last_burst_ = 0;
    };

private:
    void* memory_;
};

/// Writer and reader of a ring that is a single object.
template <class Ring>
class WriterOf {
public:
    explicit WriterOf(Ring& ring) noexcept : ring_(ring) {}
    template <std::size_t N>
    std::size_t push(std::uint64_t first) {
        return ring_.template push<N>(first);
    }
    void finish() noexcept {}

private:
    Ring& ring_;
};
template <class Ring>
class ReaderOf {
public:
    explicit ReaderOf(Ring& ring) noexcept : ring_(ring) {}
    template <std::size_t N>
    std::size_t pop(std::uint64_t first, Differences& wrong) {
        return ring_.template pop<N>(first, wrong);
    }

private:
    Ring& ring_;
};

template <std::size_t Bytes, std::uint32_t Capacity>
class BoostRing {
public:
    static constexpr const char* kName = "boost::lockfree::spsc_queue";
    using Writer = WriterOf<BoostRing>;
    using Reader = ReaderOf<BoostRing>;

    explicit BoostRing(void* memory) : queue_(*new (memory) Queue) {}
    ~BoostRing() { queue_.~Queue(); }

    template <std::size_t N>
    std::size_t push(std::uint64_t first) {
        std::array<Item<Bytes>, N> items;
        for (std::size_t i = 0; i < N; ++i) {
            items[i].fill(first + i);
        }
        return N == 1 ? std::size_t{queue_.push(items[0])} : queue_.push(items.data(), N);
    }
    template <std::size_t N>
    std::size_t pop(std::uint64_t first, Differences& wrong) {
        if constexpr (N == 1) {
            return queue_.consume_one([&](const Item<Bytes>& item) { wrong.see<Bytes>(&item, first); });
        } else {
            std::array<Item<Bytes>, N> items;
            const std::size_t n = queue_.pop(items.data(), N);
            for (std::size_t i = 0; i < n; ++i) {
                wrong.see<Bytes>(&items[i], first + i);
            }
            return n;
        }
    }

private:
    using Queue = boost::lockfree::spsc_queue<Item<Bytes>, boost::lockfree::capacity<Capacity>>;
    Queue& queue_;
};

template <std::size_t Bytes, std::uint32_t Capacity>
class RteRing {
public:
    static constexpr const char* kName = "rte_ring, elements";
    using Writer = WriterOf<RteRing>;
    using Reader = ReaderOf<RteRing>;

    explicit RteRing(void* memory) : ring_(static_cast<rte_ring*>(memory)) {
        if (rte_ring_init(ring_, "bench", Capacity, RING_F_SP_ENQ | RING_F_SC_DEQ) != 0) {
            throw std::runtime_error("rte_ring_init refused the ring");
        }
    }

    template <std::size_t N>
    std::size_t push(std::uint64_t first) noexcept {
        std::array<Item<Bytes>, N> items;
        for (std::size_t i = 0; i < N; ++i) {
            items[i].fill(first + i);
        }
        return rte_ring_sp_enqueue_burst_elem(ring_, items.data(), Bytes, N, nullptr);
    }
    template <std::size_t N>
    std::size_t pop(std::uint64_t first, Differences& wrong) noexcept {
        std::array<Item<Bytes>, N> items;
        const std::size_t n = rte_ring_sc_dequeue_burst_elem(ring_, items.data(), Bytes, N, nullptr);
        for (std::size_t i = 0; i < n; ++i) {
            wrong.see<Bytes>(&items[i], first + i);
        }
        return n;
    }

protected:
    rte_ring* ring_;
};

template <std::size_t Bytes, std::uint32_t Capacity>
class RteZeroCopyRing : public RteRing<Bytes, Capacity> {
public:
    static constexpr const char* kName = "rte_ring, zero-copy";
    using Writer = WriterOf<RteZeroCopyRing>;
    using Reader = ReaderOf<RteZeroCopyRing>;
    using RteRing<Bytes, Capacity>::RteRing;

    template <std::size_t N>
    std::size_t push(std::uint64_t first) noexcept {
        rte_ring_zc_data zcd;
        const unsigned n = rte_ring_enqueue_zc_burst_elem_start(this->ring_, Bytes, N, &zcd, nullptr);
        for (unsigned i = 0; i < n; ++i) {
            at(zcd, i)->fill(first + i);
        }
        if (n > 0) {
            rte_ring_enqueue_zc_elem_finish(this->ring_, n);
        }
        return n;
    }
    template <std::size_t N>
    std::size_t pop(std::uint64_t first, Differences& wrong) noexcept {
        rte_ring_zc_data zcd;
        const unsigned n = rte_ring_dequeue_zc_burst_elem_start(this->ring_, Bytes, N, &zcd, nullptr);
        for (unsigned i = 0; i < n; ++i) {
            wrong.see<Bytes>(at(zcd, i), first + i);
        }
        if (n > 0) {
            rte_ring_dequeue_zc_elem_finish(this->ring_, n);
        }
        return n;
    }

private:
    static Item<Bytes>* at(const rte_ring_zc_data& zcd, unsigned i) noexcept {
        return i < zcd.n1 ? static_cast<Item<Bytes>*>(zcd.ptr1) + i
                          : static_cast<Item<Bytes>*>(zcd.ptr2) + (i - zcd.n1);
    }
};

template <std::size_t Bytes, std::uint32_t Capacity>
class MoodycamelRing {
public:
    static constexpr const char* kName = "readerwriterqueue";
    using Writer = WriterOf<MoodycamelRing>;
    using Reader = ReaderOf<MoodycamelRing>;

    explicit MoodycamelRing(void*) {}
    void finish() noexcept {}

    // This ring has no calls for several items.
    template <std::size_t N>
    std::size_t push(std::uint64_t first) {
        std::size_t n = 0;
        for (; n < N; ++n) {
            Item<Bytes> item;
            item.fill(first + n);
            if (!queue_.try_enqueue(item)) {
                break;
            }
        }
        return n;
    }
    template <std::size_t N>
    std::size_t pop(std::uint64_t first, Differences& wrong) {
        std::size_t n = 0;
        for (; n < N; ++n) {
            const Item<Bytes>* item = queue_.peek();
            if (item == nullptr) {
                break;
            }
            wrong.see<Bytes>(item, first + n);
            (void)queue_.pop();
        }
        return n;
    }

private:
    moodycamel::ReaderWriterQueue<Item<Bytes>, 1u << 16> queue_{Capacity - 1};  // one block of Capacity slots
};

template <std::size_t Bytes, std::uint32_t Capacity>
class AtomicQueueRing {
public:
    static constexpr const char* kName = "atomic_queue, SPSC";
    using Writer = WriterOf<AtomicQueueRing>;
    using Reader = ReaderOf<AtomicQueueRing>;

    explicit AtomicQueueRing(void* memory) : queue_(*new (memory) Queue) {}
    ~AtomicQueueRing() { queue_.~Queue(); }

    template <std::size_t N>
    std::size_t push(std::uint64_t first) {
        std::size_t n = 0;
        for (; n < N; ++n) {
            Item<Bytes> item;
            item.fill(first + n);
            if (!queue_.try_push(item)) {
                break;
            }
        }
        return n;
    }
    template <std::size_t N>
    std::size_t pop(std::uint64_t first, Differences& wrong) {
        std::size_t n = 0;
        Item<Bytes> item;
        for (; n < N && queue_.try_pop(item); ++n) {
            wrong.see<Bytes>(&item, first + n);
        }
        return n;
    }

private:
    using Queue = atomic_queue::AtomicQueue2<Item<Bytes>, Capacity, true, true, false, true>;
    Queue& queue_;
};

/// Not a ring, but the limit with which rings are compared: plain stores write the items in sequence, and an index
/// publishes them after every 256 items.
template <std::size_t Bytes, std::uint32_t Capacity>
class StreamLimit {
public:
    static constexpr const char* kName = kStreamLimit;
    static constexpr std::uint64_t kPublishEvery = 256;
    static_assert(Capacity >= 2 * kPublishEvery);

    explicit StreamLimit(void* memory) noexcept : items_(static_cast<Item<Bytes>*>(memory)) {}

    class Writer {
    public:
        explicit Writer(StreamLimit& stream) noexcept : stream_(stream), items_(stream.items_) {}
        template <std::size_t N>
        std::size_t push(std::uint64_t) noexcept {
            if (tail_ + N - released_ > Capacity) [[unlikely]] {
                released_ = stream_.released_.load(std::memory_order_acquire);
                if (tail_ + N - released_ > Capacity) {
                    return 0;
                }
            }
            for (std::size_t i = 0; i < N; ++i) {
                items_[(tail_ + i) % Capacity].fill(tail_ + i);
            }
            tail_ += N;
            if (tail_ % kPublishEvery == 0) {
                finish();
            }
            return N;
        }
        void finish() noexcept { stream_.produced_.store(tail_, std::memory_order_release); }

    private:
        StreamLimit& stream_;
        Item<Bytes>* items_;
        std::uint64_t tail_ = 0;
        std::uint64_t released_ = 0;
    };
    class Reader {
    public:
        explicit Reader(StreamLimit& stream) noexcept : stream_(stream), items_(stream.items_) {}
        template <std::size_t N>
        std::size_t pop(std::uint64_t, Differences& wrong) noexcept {
            if (head_ + N > produced_) [[unlikely]] {
                produced_ = stream_.produced_.load(std::memory_order_acquire);
                if (head_ + N > produced_) {
                    return 0;
                }
            }
            for (std::size_t i = 0; i < N; ++i) {
                wrong.see<Bytes>(&items_[(head_ + i) % Capacity], head_ + i);
            }
            head_ += N;
            if (head_ % kPublishEvery == 0) {
                stream_.released_.store(head_, std::memory_order_release);
            }
            return N;
        }

    private:
        StreamLimit& stream_;
        Item<Bytes>* items_;
        std::uint64_t head_ = 0;
        std::uint64_t produced_ = 0;
    };

private:
    Item<Bytes>* items_;
    alignas(2 * kCacheLine) std::atomic<std::uint64_t> produced_{0};
    alignas(2 * kCacheLine) std::atomic<std::uint64_t> released_{0};
};

}  // namespace pollcore::bench
