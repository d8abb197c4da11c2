// The tables by which a worker finds its objects, by index or handle.
//
// Thread safety: only the worker's thread uses the tables. The control thread makes the objects. An object belongs to
// the worker from the command that adds it until the worker has answered the command that removes it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include <infiniband/verbs.h>

#include "pollcore/handle.hpp"
#include "pollcore/limits.hpp"
#include "pollcore/own_lines.hpp"
#include "worker/worker_cq.hpp"
#include "worker/worker_pool.hpp"
#include "worker/worker_qp.hpp"
#include "worker/worker_session.hpp"
#include "worker/worker_srq.hpp"

namespace pollcore {

/// The worker's table entry for an address handle (D40). It belongs to the control thread, and does not change while it
/// is in the table.
struct WorkerAh {
    AhHandle handle;
    std::uint32_t pd = 0;      ///< the control thread's number of the protection domain
    std::uint32_t client = 0;  ///< the process that owns the protection domain (ClientShare::id)
    ibv_ah* ah = nullptr;
};

/// Objects by index.
template <class T>
class Table {
public:
    explicit Table(std::size_t size = 0) : places_(size, nullptr) {}

    /// Makes room for an object at `index`. Throws std::bad_alloc.
    void make_room(std::size_t index) {
        if (places_.size() <= index) {
            places_.resize(index + 1, nullptr);
        }
    }
    void set(std::size_t index, T* object) noexcept { places_[index] = object; }
    [[nodiscard]] T* at(std::size_t index) const noexcept { return places_[index]; }
    /// Returns null if no object is at `index`, which may be any number.
    [[nodiscard]] T* find(std::size_t index) const noexcept {
        return index < places_.size() ? places_[index] : nullptr;
    }
    [[nodiscard]] T* const* data() const noexcept { return places_.data(); }
    [[nodiscard]] std::span<T* const> all() const noexcept { return places_; }
    [[nodiscard]] std::size_t size() const noexcept { return places_.size(); }
    /// Returns the first object at index `from` or later, and sets `from` to the index behind the object. Returns null
    /// if there is no such object.
    [[nodiscard]] T* next(std::uint32_t& from) const noexcept {
        while (from < places_.size()) {
            if (T* object = places_[from++]; object != nullptr) {
                return object;
            }
        }
        return nullptr;
    }

private:
    OwnLines<T*> places_;
};

class Tables {
public:
    /// `qps_max` is a power of two.
    explicit Tables(std::uint32_t qps_max)
        : qps_mask_(qps_max - 1), qps_(qps_max), srqs_(kSrqsMax), pools_(kReceivePoolsMax) {}

    // ---- The tables ----

    [[nodiscard]] const Table<WorkerSession>& sessions() const noexcept { return sessions_; }
    [[nodiscard]] const Table<WorkerCq>& cqs() const noexcept { return cqs_; }
    [[nodiscard]] const Table<WorkerQp>& qps() const noexcept { return qps_; }
    [[nodiscard]] const Table<WorkerSrq>& srqs() const noexcept { return srqs_; }
    [[nodiscard]] const Table<WorkerPool>& pools() const noexcept { return pools_; }
    /// All sessions, in the order in which the worker looks at them.
    [[nodiscard]] const OwnLines<WorkerSession*>& polled_sessions() const noexcept { return polled_sessions_; }
    [[nodiscard]] const OwnLines<WorkerCq*>& polled_cqs() const noexcept { return polled_cqs_; }

    [[nodiscard]] std::uint32_t qps_mask() const noexcept { return qps_mask_; }
    [[nodiscard]] std::size_t qps_used() const noexcept { return qps_used_; }
    /// Returns true if there are so many queue pairs that a burst prefetches the lines of all its queue pairs first
    /// (D12).
    [[nodiscard]] bool many_qps() const noexcept { return qps_used_ > kFewQps || qps_with_lines_ > kFewQpsWithLines; }
    /// Returns true if the memory to which the provider posts is known for some queue pairs.
    [[nodiscard]] bool provider_lines() const noexcept { return qps_with_lines_ != 0; }
    /// The number of receive queues. Each queue pair counts as one, and each shared receive queue as one.
    [[nodiscard]] std::size_t recv_queues() const noexcept { return qps_used_ + srqs_used_; }

    // ---- Lookups by the handle in a request or completion. They return null if there is no such object ----

    /// The queue pair at this index. Its handle may have another generation.
    [[nodiscard]] WorkerQp* qp_at(std::uint32_t index) const noexcept { return qps_.data()[index & qps_mask_]; }
    [[nodiscard]] WorkerQp* find(QpHandle handle) const noexcept {
        WorkerQp* qp = qp_at(handle.index);
        return qp != nullptr && qp->handle() == handle ? qp : nullptr;
    }
    [[nodiscard]] WorkerSrq* find(SrqHandle handle) const noexcept {
        WorkerSrq* srq = srqs_.find(handle.index);
        return srq != nullptr && srq->handle() == handle ? srq : nullptr;
    }
    [[nodiscard]] WorkerPool* find(PoolHandle handle) const noexcept {
        WorkerPool* pool = pools_.find(handle.index);
        return pool != nullptr && pool->handle() == handle ? pool : nullptr;
    }
    /// Also returns null for an address handle of another protection domain, and so of another device.
    [[nodiscard]] [[gnu::noinline]] ibv_ah* find(AhHandle handle, std::uint32_t pd) const noexcept {
        const WorkerAh* ah = ahs_.find(handle.index);
        return ah != nullptr && ah->handle == handle && ah->pd == pd ? ah->ah : nullptr;
    }

    // ---- Adding and removing. Before a function throws std::bad_alloc, it changes nothing ----

    void add(WorkerSession& session, std::uint32_t index) {
        sessions_.make_room(index);
        polled_sessions_.push_back(&session);
        sessions_.set(index, &session);
    }
    void remove(const WorkerSession& session) noexcept {
        std::erase(polled_sessions_, &session);
        sessions_.set(session.index(), nullptr);
    }
    void add(WorkerCq& cq, std::uint32_t index) {
        cqs_.make_room(index);
        polled_cqs_.push_back(&cq);
        cqs_.set(index, &cq);
    }
    void remove(const WorkerCq& cq) noexcept {
        std::erase(polled_cqs_, &cq);
        cqs_.set(cq.index(), nullptr);
    }
    void add(WorkerQp& qp) noexcept {
        qps_.set(qp.handle().index, &qp);
        ++qps_used_;
        qps_with_lines_ += qp.provider_lines().known();
    }
    void remove_qp(std::uint32_t index) noexcept {
        qps_with_lines_ -= qps_.at(index)->provider_lines().known();
        qps_.set(index, nullptr);
        --qps_used_;
    }
    void add(WorkerSrq& srq) noexcept {
        srqs_.set(srq.handle().index, &srq);
        ++srqs_used_;
    }
    void remove(const WorkerSrq& srq) noexcept {
        srqs_.set(srq.handle().index, nullptr);
        --srqs_used_;
    }
    void add(WorkerPool& pool) noexcept { pools_.set(pool.handle().index, &pool); }
    void remove(const WorkerPool& pool) noexcept { pools_.set(pool.handle().index, nullptr); }
    void make_room_for_ah(std::size_t index) { ahs_.make_room(index); }
    void add(const WorkerAh& ah) noexcept { ahs_.set(ah.handle.index, &ah); }
    void remove(const WorkerAh& ah) noexcept { ahs_.set(ah.handle.index, nullptr); }

private:
    // Measured: with at most this many queue pairs a prefetch costs more than it saves (D12). A prefetch saves more if
    // the provider's lines are known.
    static constexpr std::size_t kFewQps = 256;
    static constexpr std::size_t kFewQpsWithLines = 48;

    OwnLines<WorkerSession*> polled_sessions_;
    OwnLines<WorkerCq*> polled_cqs_;
    std::uint32_t qps_mask_;
    std::size_t qps_used_ = 0;
    std::size_t qps_with_lines_ = 0;
    std::size_t srqs_used_ = 0;
    Table<WorkerQp> qps_;
    Table<WorkerSession> sessions_;
    Table<WorkerCq> cqs_;
    Table<WorkerSrq> srqs_;
    Table<WorkerPool> pools_;
    Table<const WorkerAh> ahs_;
};

}  // namespace pollcore
