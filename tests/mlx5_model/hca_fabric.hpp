// The devices, the objects on each device, and the wire between the devices.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <infiniband/verbs.h>

#include "hca_faults.hpp"
#include "hca_queue_pair.hpp"
#include "journal.hpp"
#include "memory_keys.hpp"

namespace mlx5_model {

class UverbsFile;
class Fabric;

/// Facts about one device that never change; the whole process may read them.
struct DeviceFacts {
    std::string name;  ///< mlx5_0
    std::string file;  ///< /dev/infiniband/uverbs0
    unsigned minor = 0;
    std::uint64_t node_guid = 0;  ///< in network byte order
    std::uint32_t address = 0;    ///< IPv4, in network byte order: 127.0.0.1, 127.0.0.2 and so on
    ibv_gid gid{};                ///< in both entries of the GID table, for RoCE v1 and v2
};

/// As many devices as MLX5_MODEL_DEVICES says; one if it is not set.
const std::vector<DeviceFacts>& devices();

std::uint64_t now_ns();

/// A device. Not thread-safe: callers hold the fabric's lock.
class Hca {
public:
    static constexpr std::uint8_t kReadsMax = 16;
    static constexpr std::uint32_t kMtu = IBV_MTU_4096;
    static constexpr std::uint32_t kGids = 2;

    Hca(Fabric& fabric, const DeviceFacts& facts) : fabric_(fabric), facts_(facts) {}

    [[nodiscard]] Fabric& fabric() const noexcept { return fabric_; }
    [[nodiscard]] const DeviceFacts& facts() const noexcept { return facts_; }
    [[nodiscard]] bool port_up() const noexcept { return port_up_; }
    [[nodiscard]] bool removed() const noexcept { return removed_; }

    void add(UverbsFile* file) { files_.push_back(file); }
    void drop(UverbsFile* file) { std::erase(files_, file); }
    /// If the state changes, raises an event in each open file.
    void set_port(bool up);
    /// Unplugs the device, also from rdma_cm: each open file gets an event, and answers with EIO from now on.
    void remove();
    /// Also updates the counters in sysfs.
    void count_rnr_nak();

    MemoryKeys keys;

private:
    Fabric& fabric_;
    DeviceFacts facts_;
    std::vector<UverbsFile*> files_;
    bool port_up_ = true;
    bool removed_ = false;
    std::uint64_t rnr_naks_ = 0;
};

/// What runs the NIC.
enum class Pace : std::uint8_t {
    by_hand,   ///< the caller of step() and serve()
    by_polls,  ///< each poll of a completion queue
    by_thread  ///< a thread of the fabric
};

/// `name` is "hand", "poll" or "thread". Aborts on any other name.
Pace pace_of(std::string_view name);

/// All devices of this process. Callers hold `lock`, except for hca(), hcas(), knows(), pace(), and where a comment
/// says otherwise.
class Fabric {
public:
    /// Made by the first call and never destroyed: a process may close descriptors until its very end.
    static Fabric& get();

    [[nodiscard]] Hca* hca(const std::string& name);
    [[nodiscard]] const std::vector<std::unique_ptr<Hca>>& hcas() const noexcept { return hcas_; }
    [[nodiscard]] bool knows(const ibv_gid& gid) const;
    /// Returns null if the device does not exist or has no such queue pair.
    [[nodiscard]] QueuePair* find(const ibv_gid& gid, std::uint32_t qpn) const;

    std::uint32_t new_number() { return next_number_++; }
    void add(const std::shared_ptr<QueuePair>& qp);
    void drop(const QueuePair& qp);
    void add(const std::shared_ptr<CompletionQueue>& cq) { cqs_[cq->number()] = cq; }
    void drop(const CompletionQueue& cq) { cqs_.erase(cq.number()); }
    [[nodiscard]] QueuePair* qp(std::uint32_t number) const;
    [[nodiscard]] CompletionQueue* cq(std::uint32_t number) const;

    /// Each queue pair carries out at most `most` sends. Then armed CQs put events into their channels. Returns the
    /// number of sends that ended. Call with the lock held.
    int step(int most);
    /// Carries out at most `most` sends of one queue pair. No CQ puts an event into its channel. Returns the number of
    /// sends that ended.
    int serve(std::uint32_t qpn, int most);

    [[nodiscard]] Pace pace() const noexcept { return pace_.load(std::memory_order_relaxed); }
    /// MLX5_MODEL=hand, poll or thread in the environment sets the initial pace. Without MLX5_MODEL it is by_polls.
    /// Call without the lock.
    void set_pace(Pace pace);
    /// Call after a file was opened, without the lock. Starts the thread if the pace is by_thread.
    void opened();
    /// Call after a file was closed, without the lock. Ends the thread with the last file.
    void closed();

    std::mutex lock;
    FaultPlan faults;
    Journal journal;

private:
    Fabric();

    std::vector<std::unique_ptr<Hca>> hcas_;
    std::map<std::uint32_t, std::shared_ptr<QueuePair>> qps_;
    std::map<std::uint32_t, std::shared_ptr<CompletionQueue>> cqs_;
    std::uint32_t next_number_ = 0x100;
    std::atomic<Pace> pace_ = Pace::by_polls;

    void run();
    void start_or_end_thread();
    std::mutex thread_lock_;
    int open_files_ = 0;
    std::atomic<bool> running_ = false;
    std::thread thread_;
};

}  // namespace mlx5_model
