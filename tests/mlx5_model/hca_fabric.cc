#include "hca_fabric.hpp"

#include <arpa/inet.h>
#include <endian.h>
#include <fcntl.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "refuse.hpp"
#include "sysfs.hpp"
#include "ucma.hpp"
#include "uverbs_file.hpp"

namespace mlx5_model {
namespace {

constexpr unsigned kDevicesMax = 32;
constexpr unsigned kFirstMinor = 192;
constexpr std::uint64_t kFirstGuid = 0x0c42a10300000001;
constexpr int kStepOfThread = 64;

unsigned device_count() {
    const char* text = std::getenv("MLX5_MODEL_DEVICES");
    if (text == nullptr) {
        return 1;
    }
    const unsigned long count = std::strtoul(text, nullptr, 10);
    require(count >= 1 && count <= kDevicesMax, "MLX5_MODEL_DEVICES={}: 1 to {} devices are possible", text,
            kDevicesMax);
    return static_cast<unsigned>(count);
}

Pace first_pace() {
    const char* text = std::getenv("MLX5_MODEL");
    return text == nullptr ? Pace::by_polls : pace_of(text);
}

WireFaults first_faults() {
    WireFaults faults;
    if (const char* text = std::getenv("MLX5_MODEL_LOSS")) {
        unsigned long seed = 1;
        const int read = std::sscanf(text, "%u,%u,%u,%lu", &faults.requests_lost, &faults.answers_lost,
                                     &faults.requests_repeated, &seed);
        require(read >= 3, "MLX5_MODEL_LOSS={}: it is requests,answers,repeated[,seed], the first three of 1024", text);
        faults.seed = seed;
    }
    return faults;
}

}  // namespace

const std::vector<DeviceFacts>& devices() {
    // Never destroyed: a process may close descriptors until its very end.
    static const auto* all = [] {
        auto* made = new std::vector<DeviceFacts>;
        for (unsigned i = 0; i < device_count(); ++i) {
            DeviceFacts facts;
            facts.name = fmt::format("mlx5_{}", i);
            facts.file = fmt::format("/dev/infiniband/uverbs{}", i);
            facts.minor = kFirstMinor + i;
            facts.node_guid = htobe64(kFirstGuid + i);
            facts.address = htonl(INADDR_LOOPBACK + i);
            facts.gid.raw[10] = facts.gid.raw[11] = 0xff;
            std::memcpy(facts.gid.raw + 12, &facts.address, sizeof facts.address);
            made->push_back(std::move(facts));
        }
        return made;
    }();
    return *all;
}

Pace pace_of(std::string_view name) {
    require(name == "hand" || name == "poll" || name == "thread", "the pace is {}, not hand, poll or thread", name);
    return name == "hand" ? Pace::by_hand : name == "thread" ? Pace::by_thread : Pace::by_polls;
}

std::uint64_t now_ns() {
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
            .count());
}

// ---- One device ----

void Hca::set_port(bool up) {
    if (port_up_ == up) {
        return;
    }
    port_up_ = up;
    for (UverbsFile* file : files_) {
        file->raise(up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR, 1, nullptr);
    }
}

void Hca::remove() {
    if (removed_) {
        return;
    }
    removed_ = true;
    port_up_ = false;
    for (UverbsFile* file : files_) {
        file->raise(IBV_EVENT_DEVICE_FATAL, 0, nullptr);
        file->end_events();
    }
    remove_from_rdma_cm(facts_);
}

void Hca::count_rnr_nak() {
    ++rnr_naks_;
    // Both ends are in this process: the end that sends the NAK and the end that receives it.
    set_counter(facts_, "out_of_buffer", rnr_naks_);
    set_counter(facts_, "rnr_nak_retry_err", rnr_naks_);
}

// ---- All devices ----

Fabric& Fabric::get() {
    static auto* one = new Fabric;
    return *one;
}

Fabric::Fabric() : pace_(first_pace()) {
    faults.on_the_wire(first_faults());
    for (const DeviceFacts& facts : devices()) {
        hcas_.push_back(std::make_unique<Hca>(*this, facts));
    }
}

Hca* Fabric::hca(const std::string& name) {
    const auto found = std::ranges::find_if(hcas_, [&](const auto& hca) { return hca->facts().name == name; });
    return found == hcas_.end() ? nullptr : found->get();
}

bool Fabric::knows(const ibv_gid& gid) const {
    return std::ranges::any_of(
        hcas_, [&](const auto& hca) { return std::memcmp(gid.raw, hca->facts().gid.raw, sizeof gid.raw) == 0; });
}

QueuePair* Fabric::find(const ibv_gid& gid, std::uint32_t number) const {
    QueuePair* found = qp(number);
    if (found == nullptr || found->facts().hca->removed() ||
        std::memcmp(found->facts().hca->facts().gid.raw, gid.raw, sizeof gid.raw) != 0) {
        return nullptr;
    }
    return found;
}

void Fabric::add(const std::shared_ptr<QueuePair>& qp) {
    qps_[qp->facts().number] = qp;
}

void Fabric::drop(const QueuePair& qp) {
    faults.forget(qp.facts().number);
    qps_.erase(qp.facts().number);
}

QueuePair* Fabric::qp(std::uint32_t number) const {
    const auto found = qps_.find(number);
    return found == qps_.end() ? nullptr : found->second.get();
}

CompletionQueue* Fabric::cq(std::uint32_t number) const {
    const auto found = cqs_.find(number);
    return found == cqs_.end() ? nullptr : found->second.get();
}

int Fabric::step(int most) {
    int ended = 0;
    const std::uint64_t now = now_ns();
    for (const auto& [number, qp] : qps_) {
        if (!qp->facts().hca->removed()) {
            ended += qp->serve(most, now);
        }
    }
    for (const auto& [number, cq] : cqs_) {
        cq->fire(now);
    }
    return ended;
}

int Fabric::serve(std::uint32_t number, int most) {
    QueuePair* found = qp(number);
    return found == nullptr || found->facts().hca->removed() ? 0 : found->serve(most, now_ns());
}

void Fabric::set_pace(Pace pace) {
    const std::lock_guard guard(thread_lock_);
    {
        // Taking the lock waits until a step at the old pace has ended.
        const std::lock_guard still(lock);
        pace_ = pace;
    }
    start_or_end_thread();
}

void Fabric::opened() {
    const std::lock_guard guard(thread_lock_);
    ++open_files_;
    start_or_end_thread();
}

void Fabric::closed() {
    const std::lock_guard guard(thread_lock_);
    --open_files_;
    start_or_end_thread();
}

void Fabric::start_or_end_thread() {
    const bool wanted = open_files_ > 0 && pace_ == Pace::by_thread;
    if (wanted == running_) {
        return;
    }
    running_ = wanted;
    if (wanted) {
        thread_ = std::thread(&Fabric::run, this);
    } else {
        thread_.join();
    }
}

// A real NIC takes no CPU time, so this thread sleeps between its steps. With sched_yield(2) instead, this thread and
// workers that also yield can keep all other threads from a CPU for minutes (seen on Linux 6.18).
void Fabric::run() {
    constexpr std::chrono::microseconds kAfterWork{2};
    constexpr std::chrono::microseconds kWhenIdle{20};
    while (running_) {
        int ended = 0;
        {
            const std::lock_guard guard(lock);
            ended = step(kStepOfThread);
        }
        std::this_thread::sleep_for(ended != 0 ? kAfterWork : kWhenIdle);
    }
}

}  // namespace mlx5_model
