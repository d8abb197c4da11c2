#include "control/runtime_statistics.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <numeric>
#include <set>
#include <string_view>
#include <variant>

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/probe.hpp"
#include "base/thread_health.hpp"
#include "config/users_and_groups.hpp"
#include "control/eal.hpp"
#include "control/inventory.hpp"
#include "control/runtime_state.hpp"
#include "control/segment_tables.hpp"
#include "pollcore/version.hpp"

namespace pollcore {

using namespace segment;

namespace {

using Row = statistics::SegmentWriter::RowWriter;

// In each call of write() a part of the queue pairs is written: all of them in about a second.
constexpr std::size_t kQueuePairsInTick = 4096;

template <class Counters, std::size_t N>
void write(Row& row, const Counters& from, const CounterField<Counters> (&all)[N]) {
    for (const auto& each : all) {
        row << (from.*each.member).value();
    }
}

void write(Row& row, const FigureTotals& figures) {
    row << figures.sends << figures.send_bytes << figures.receives << figures.receive_bytes << figures.all_errors();
    for (std::size_t i = 1; i < figures.errors.size(); ++i) {
        row << figures.errors[i];
    }
}

template <std::size_t N>
std::uint64_t all_of(const std::array<Counter, N>& counts) noexcept {
    return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0},
                           [](std::uint64_t sum, const Counter& count) { return sum + count.value(); });
}

gid_t readers_of(const StatisticsConfig& config) {
    if (config.group.empty()) {
        return config::kNoAccount;
    }
    const auto number = config::account_number(config::AccountKind::group, config.group);
    if (const auto* known = std::get_if<std::uint32_t>(&number)) {
        return *known;
    }
    throw Error(EINVAL, fmt::format("this machine knows no group \"{}\"", config.group));
}

std::string name_of(const StatisticsConfig& config) {
    return config.name.empty() ? program_invocation_short_name : config.name;
}

statistics::SegmentOptions options_for(const RuntimeStatistics::Sources& from) {
    const StatisticsConfig& config = from.config.statistics;
    return {.file = statistics::new_segment_file(),
            .name = name_of(config),
            .group = readers_of(config),
            .cycles_per_second = from.platform.cycles_from(std::chrono::seconds(1))};
}

std::vector<StallWatch::Watched> watched(const std::vector<std::unique_ptr<WorkerSlot>>& workers) {
    std::vector<StallWatch::Watched> all;
    for (const auto& worker : workers) {
        all.push_back({worker->thread->thread_id(), &worker->worker->stalls()});
    }
    return all;
}

/// The ports of the kernel's devices.
std::vector<statistics::PortCounters::Port> ports_of(const std::vector<std::unique_ptr<DeviceSlot>>& devices) {
    std::vector<statistics::PortCounters::Port> ports;
    for (const auto& device : devices) {
        if (device->device->has_kernel()) {
            ports.push_back(
                {static_cast<std::uint32_t>(device->number),
                 fmt::format("{}/ports/{}", device->device->context()->device->ibdev_path, device->device->port())});
        }
    }
    return ports;
}

std::uint64_t now_ns() {
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
            .count());
}

}  // namespace

struct RuntimeStatistics::OfProcess {
    OfProcess(const statistics::SegmentOptions& options, const std::vector<statistics::TableSpec>& specs)
        : segment(options, specs), sessions_max(specs[kSessions].rows), queue_pairs_max(specs[kQueuePairs].rows) {}

    Segment segment;
    const std::size_t sessions_max;
    const std::size_t queue_pairs_max;
    std::uint32_t session_rows = 0;  // that have a session
    std::uint32_t queue_pair_rows = 0;
};

std::unique_ptr<RuntimeStatistics> RuntimeStatistics::make(const Sources& sources) noexcept {
    if (sources.config.statistics.segment != StatisticsConfig::Segment::on) {
        return nullptr;
    }
    try {
        statistics::remove_dead_segments();
        auto made = std::make_unique<RuntimeStatistics>(sources);
        log_info("statistics: {}", made->segment_.file().string());
        return made;
    } catch (const std::exception& error) {
        log_warning("there are no statistics: {}", error.what());
        return nullptr;
    }
}

RuntimeStatistics::RuntimeStatistics(const Sources& sources)
    : from_(sources),
      segment_(options_for(sources), tables(sources.config)),
      events_(segment_, kEvents),
      stall_watch_(watched(sources.workers)) {
    if (auto ports = ports_of(from_.devices); !ports.empty()) {
        std::vector<std::uint32_t> cores;
        for (const WorkerConfig& worker : from_.config.workers) {
            cores.push_back(worker.core);
        }
        try {
            port_counters_.emplace(segment_, kPortCounters, ports,
                                   [cpus = helper_cpus(cores)] { become_helper("pollcore-ports", cpus); });
        } catch (const std::exception& error) {
            log_warning("the statistics have no counters of ports: {}", error.what());
        }
    }
}

RuntimeStatistics::~RuntimeStatistics() = default;

void RuntimeStatistics::write(bool stopping) noexcept {
    write_runtime(stopping);
    for (std::uint32_t i = 0; i < from_.workers.size(); ++i) {
        write_worker(i);
    }
    take_stalls();
    write_queue_pairs();
    for (const auto& device : from_.devices) {
        write_device(*device);
    }
    std::uint32_t at = 0;
    for (const auto& [number, session] : from_.sessions) {
        if (at < kSessionRows) {
            write_session(segment_, at++, session);
        }
    }
    clear_rest(segment_, kSessions, at, session_rows_);
    take_all_followed();
    write_processes();
    segment_.updated(steady_ns(from_.platform.now()));
}

void RuntimeStatistics::clear_rest(Segment& in, std::size_t table, std::uint32_t used, std::uint32_t& rows) noexcept {
    for (std::uint32_t gone = used; gone < rows; ++gone) {
        in.clear(table, gone);
    }
    rows = used;
}

void RuntimeStatistics::write_runtime(bool stopping) noexcept {
    Row row = segment_.write(kRuntimes, 0);
    row << 1;
    row.text(POLLCORE_VERSION, kNameBytes) << from_.workers.size() << stopping;
    pollcore::write(row, from_.counters, kControlCounters);
}

void RuntimeStatistics::write_worker(std::uint32_t index) noexcept {
    const WorkerSlot& worker = *from_.workers[index];
    const WorkerCounters& counters = worker.worker->counters();
    Row row = segment_.write(kWorkers, index);
    row << index + 1;
    row.text(worker.config.name, kNameBytes) << worker.config.core << worker.worker->heartbeat().thread_id();
    pollcore::write(row, counters, kWorkerCounters);
    for (const std::uint64_t cycles : idle_cycles_now(counters, from_.platform.cycles())) {
        row << cycles;
    }
    for (const Counter& count : counters.wake_cycles) {
        row << count.value();
    }
}

void RuntimeStatistics::write_device(const DeviceSlot& device) noexcept {
    if (device.index >= kDeviceRows) {
        return;
    }
    if (device.device == nullptr) {
        return segment_.clear(kDevices, device.index);
    }
    // The counts of a kernel's device are in the table of port counters. To ask for them here could take long.
    std::optional<RnrCounts> rnr;
    try {
        rnr = device.device->is_software() ? device.device->rnr_counts() : std::nullopt;
    } catch (const std::exception&) {
        rnr.reset();
    }
    Row row = segment_.write(kDevices, device.index);
    row << device.number;
    row.text(device.config.name, kNameBytes) << device.client;
    row.text(device.description, kDescriptionBytes)
        << device.lost << rnr.value_or(RnrCounts{}).received << rnr.value_or(RnrCounts{}).sent;
    pollcore::write(row, figures_.of_device(device.number));
}

void RuntimeStatistics::write_session(Segment& to, std::uint32_t at, const SessionSlot& session) noexcept {
    // An attached process may have written anything into the block. These are only numbers.
    void* const block = session.block.data();
    const SessionHeader& header = *session_header(block);
    const auto ring = [&](std::size_t offset) -> const RingHeader& {
        return *at_offset<const RingHeader>(block, offset);
    };
    const WorkerSession::Figures figures = session.figures_now();
    const auto& refusals = *at_offset<const SessionRefusals>(block, session.layout.refusals());
    const RingHeader& submissions = ring(session.layout.submissions());
    const RingHeader& completions = ring(session.layout.completions());
    Row row = to.write(kSessions, at);
    row << session.id;
    row.text(session.name.view(), kNameBytes)
        << session.worker + 1 << (session.client != nullptr ? session.client->id() : 0) << figures.accepted
        << figures.completed << header.retired.load(std::memory_order_relaxed)
        << header.throttled.load(std::memory_order_relaxed) << all_of(refusals.by_cause) << figures.refused
        << session.layout.submission_slots << submissions.high_water.load(std::memory_order_relaxed)
        << session.layout.completion_ring_slots() << completions.high_water.load(std::memory_order_relaxed);
    const auto& stages = *at_offset<const SessionStages>(block, session.layout.stages());
    for (const LatencyCounters* stage : {&stages.submission_ring, &stages.device, &stages.completion_ring}) {
        for (const Counter& count : stage->counts) {
            row << count.value();
        }
    }
    for (std::size_t i = 1; i < refusals.by_cause.size(); ++i) {
        row << refusals.by_cause[i].value();
    }
}

void RuntimeStatistics::write_process(Segment& to, std::uint32_t at, const ProcessFigures& its) const {
    Row row = to.write(kProcesses, at);
    row << its.number;
    row.text(its.name, kNameBytes) << its.pid << its.uid << its.ending << its.own_memory << its.sessions
                                   << its.queue_pairs << its.shared_receive_queues << its.receive_pools << its.listeners
                                   << its.memory_regions << its.memory_windows << its.address_handles
                                   << its.protection_domains << its.work_requests << its.bytes << its.pinned_bytes
                                   << its.refused;
    pollcore::write(row, figures_.of_process(its.number));
}

void RuntimeStatistics::write_processes() noexcept {
    std::uint32_t at = 0;
    if (from_.host != nullptr) {
        try {
            std::set<std::uint32_t> there;
            from_.host->each_process([&](const ProcessFigures& its) {
                if (at < kAttachedMax) {
                    there.insert(its.number);
                    write_process(segment_, at++, its);
                }
            });
            forget_the_gone(there);
        } catch (const std::bad_alloc&) {
            return;  // the next call tries again
        }
    }
    clear_rest(segment_, kProcesses, at, process_rows_);
}

void RuntimeStatistics::forget_the_gone(const std::set<std::uint32_t>& processes) noexcept {
    figures_.forget_processes([&](std::uint32_t process) { return processes.contains(process); });
    figures_.forget_devices([this](std::uint64_t number) {
        return std::any_of(from_.devices.begin(), from_.devices.end(),
                           [&](const auto& device) { return device->number == number; });
    });
    std::erase_if(of_processes_, [&](const auto& entry) { return !processes.contains(entry.first); });
}

void RuntimeStatistics::enter(QpSlot& qp) noexcept {
    try {
        figures_.enter(qp.figures, *qp.end, from_.devices[qp.device]->number, qp.client);
    } catch (const std::bad_alloc&) {
        return;  // the sums lack what the queue pair did since the last call
    }
}

void RuntimeStatistics::write_queue_pairs() noexcept {
    for (std::size_t i = 0; i < std::min(kQueuePairsInTick, from_.qps.size()); ++i) {
        next_qp_ = next_qp_ + 1 < from_.qps.size() ? next_qp_ + 1 : 0;
        const auto row = static_cast<std::uint32_t>(next_qp_);
        if (QpSlot* const qp = from_.qps[next_qp_].get()) {
            enter(*qp);
            write_queue_pair(segment_, row, *qp);
        } else {
            segment_.clear(kQueuePairs, row);
        }
    }
}

void RuntimeStatistics::write_queue_pair(Segment& to, std::uint32_t at, const QpSlot& qp) const noexcept {
    const WorkerSlot& worker = *from_.workers[qp.worker];
    const auto& shares = qp.end->options().shares;
    const std::uint32_t first_session = shares.empty() ? 0 : worker.sessions.at(shares.front().session);
    Row row = to.write(kQueuePairs, at);
    row << bits_of(qp.handle);
    row.text(qp.name.view(), kNameBytes) << first_session << qp.worker + 1 << from_.devices[qp.device]->number
                                         << qp.client << qp.qp_num;
    row.text(qp_type_name(qp.type), kShortBytes)
        .text(qp_state_name(qp.state), kShortBytes)
        .text(qp.flow == FlowControl::off ? "" : flow_control_name(qp.flow), kShortBytes);
    pollcore::write(row, qp.figures.totals);
}

UniqueFd RuntimeStatistics::copy_for(std::uint32_t client) {
    std::vector<const SessionSlot*> sessions;
    for (const auto& [number, session] : from_.sessions) {
        if (session.client != nullptr && session.client->id() == client) {
            sessions.push_back(&session);
        }
    }
    std::vector<QpSlot*> qps;
    for (const auto& qp : from_.qps) {
        if (qp != nullptr && qp->client == client) {
            qps.push_back(qp.get());
        }
    }
    OfProcess& its = segment_of(client, sessions.size(), qps.size());
    for (std::uint32_t i = 0; i < sessions.size(); ++i) {
        write_session(its.segment, i, *sessions[i]);
    }
    clear_rest(its.segment, kSessions, static_cast<std::uint32_t>(sessions.size()), its.session_rows);
    for (std::uint32_t i = 0; i < qps.size(); ++i) {
        enter(*qps[i]);
        write_queue_pair(its.segment, i, *qps[i]);
    }
    clear_rest(its.segment, kQueuePairs, static_cast<std::uint32_t>(qps.size()), its.queue_pair_rows);
    from_.host->each_process([&](const ProcessFigures& figures) {
        if (figures.number == client) {
            write_process(its.segment, 0, figures);
        }
    });
    its.segment.updated(steady_ns(from_.platform.now()));
    return its.segment.descriptor();
}

RuntimeStatistics::OfProcess& RuntimeStatistics::segment_of(std::uint32_t client, std::size_t sessions,
                                                            std::size_t queue_pairs) {
    std::unique_ptr<OfProcess>& its = of_processes_[client];
    // A reload may have raised the limits.
    if (its == nullptr || its->sessions_max < sessions || its->queue_pairs_max < queue_pairs) {
        std::vector<statistics::TableSpec> specs = tables(from_.config);
        for (statistics::TableSpec& table : specs) {
            table.rows = 0;
        }
        const AttachConfig& limits = from_.config.attach;
        specs[kSessions].rows = std::max(limits.sessions_max, static_cast<std::uint32_t>(sessions));
        specs[kQueuePairs].rows = std::max(limits.queue_pairs_max, static_cast<std::uint32_t>(queue_pairs));
        specs[kProcesses].rows = 1;
        const statistics::SegmentOptions options{
            .file = {},
            .name = name_of(from_.config.statistics),
            .cycles_per_second = from_.platform.cycles_from(std::chrono::seconds(1))};
        its = std::make_unique<OfProcess>(options, specs);
    }
    return *its;
}

void RuntimeStatistics::take_all_followed() noexcept {
    try {
        std::erase_if(followed_, [this](const auto& entry) { return !from_.sessions.contains(entry.first); });
        for (const auto& entry : from_.sessions) {
            const std::uint32_t number = entry.first;  // a lambda of clang 14 cannot name a structured binding
            const SessionSlot& session = entry.second;
            const auto& trace = *at_offset<const SessionTrace>(session.block.data(), session.layout.trace());
            followed_[number].look(trace, from_.platform.cycles(), [&](const FollowedRequest& request) {
                Row row = segment_.write(kFollowed, static_cast<std::uint32_t>(followed_count_ % kFollowedRows));
                row << ++followed_count_ << number << request.qp << request.opcode << request.submitted << request.taken
                    << request.completed << request.polled;
            });
        }
    } catch (const std::bad_alloc&) {
        return;  // the next call tries again
    }
}

void RuntimeStatistics::take_stalls() noexcept {
    try {
        stall_watch_.look([this] { return from_.platform.cycles(); },
                          [this](const StallWatch::Found& found) { write_stall(found); });
    } catch (const std::bad_alloc&) {
        return;  // the next call tries again
    }
}

void RuntimeStatistics::write_stall(const StallWatch::Found& found) {
    const double cycles_per_ns = static_cast<double>(from_.platform.cycles_from(std::chrono::seconds(1))) / 1e9;
    const auto ns = [&](std::uint64_t cycles) {
        return static_cast<std::uint64_t>(static_cast<double>(cycles) / cycles_per_ns);
    };
    const std::uint64_t since_its_begin = from_.platform.cycles() - found.stall.began;
    const ThreadSample& meanwhile = found.meanwhile;
    {
        Row row = segment_.write(kStalls, static_cast<std::uint32_t>(stalls_ % kStallRows));
        row << ++stalls_ << found.worker + 1 << now_ns() - ns(since_its_begin) << found.stall.cycles
            << meanwhile.voluntary_switches << meanwhile.involuntary_switches
            << static_cast<std::uint64_t>(meanwhile.run_delay.count())
            << static_cast<std::uint64_t>(meanwhile.kernel.count())
            << static_cast<std::uint64_t>(meanwhile.steal.count())
            << static_cast<std::uint64_t>(meanwhile.interrupts.count()) << meanwhile.minor_faults
            << meanwhile.major_faults << meanwhile.frequency << found.stall.began;
    }
    POLLCORE_PROBE(worker_stalled, found.worker + 1, ns(found.stall.cycles));
    if (const auto left_out = stall_lines_.take(from_.platform.now())) {
        log_info("worker \"{}\" stalled for {:.2f} ms; coincident: {}{}", from_.workers[found.worker]->config.name,
                 static_cast<double>(ns(found.stall.cycles)) / 1e6, text_of(meanwhile), and_others(*left_out));
    }
}

}  // namespace pollcore
