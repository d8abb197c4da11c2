#include "exporter.hpp"

#include <signal.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include <fmt/format.h>

#include "choice.hpp"
#include "listening_address.hpp"
#include "metrics_server.hpp"
#include "pollcore/error.hpp"

namespace pollcore::stat {
namespace {

constexpr std::chrono::milliseconds kValid{100};
constexpr int kIdleTimes = 10;  // how many times as long as making a text it is valid
// Anybody may put files into /dev/shm. A user who puts many there must not take the time of the others' runtimes.
constexpr std::size_t kSegmentsOfUser = 64;
constexpr std::size_t kBytesOfUser = std::size_t{256} << 20;
constexpr std::size_t kSamplesOfUser = 200'000;
constexpr std::size_t kSamplesOfExporter = 100;

std::uint64_t monotonic_now() {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
}

/// "4711-25-0" of "/dev/shm/pollcore-4711-25-0.statistics".
std::string segment_name(const std::filesystem::path& file) {
    constexpr std::string_view kPrefix = "pollcore-";
    const std::string name = file.stem();
    return name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name;
}

/// The segments, those of the users with the smallest numbers first: of root, of daemons, and of people. If a segment
/// says that a metric has another type than in one before, its own samples are left out.
std::vector<Exporter::Segment> segments_of(const std::vector<std::filesystem::path>& files) {
    std::vector<Exporter::Segment> all;
    for (const std::filesystem::path& file : files) {
        struct stat status {};
        if (::lstat(file.c_str(), &status) == 0) {  // else its runtime has ended meanwhile
            all.push_back({.file = file,
                           .owner = status.st_uid,
                           .bytes = static_cast<std::size_t>(std::max<off_t>(status.st_size, 0))});
        }
    }
    std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.owner < b.owner; });
    return all;
}

std::string reason_of(const Error& error) {
    switch (error.code().value()) {
        case EACCES:
        case EPERM: return "permission";
        case EPROTONOSUPPORT: return "version";
        case EPROTO:
        case ELOOP: return "damaged";
        default: return "other";
    }
}

UniqueFd stop_signals() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    if (::sigprocmask(SIG_BLOCK, &set, nullptr) != 0) {
        throw Error(errno, "cannot block SIGTERM and SIGINT to wait for them");
    }
    // libmicrohttpd writes to clients that may have gone.
    struct sigaction ignore {};
    ignore.sa_handler = SIG_IGN;
    (void)::sigaction(SIGPIPE, &ignore, nullptr);
    UniqueFd fd(::signalfd(-1, &set, SFD_CLOEXEC));
    if (!fd.valid()) {
        throw Error(errno, "signalfd");
    }
    return fd;
}

}  // namespace

Exporter::Exporter(std::string wanted, MetricsOptions options) : wanted_(std::move(wanted)), metrics_(options) {}

std::shared_ptr<const std::string> Exporter::text() {
    const Clock::time_point began = Clock::now();
    ++scrapes_;
    if (text_ == nullptr || began >= valid_until_) {
        text_ = std::make_shared<const std::string>(build());
        const Clock::time_point ended = Clock::now();
        valid_until_ = ended + std::max<Clock::duration>(kValid, (ended - began) * kIdleTimes);
    }
    return text_;
}

void Exporter::add_segment(Exposition& out, const Segment& segment) {
    Share& share =
        shares_.try_emplace(segment.owner, Share{kSegmentsOfUser, kBytesOfUser, kSamplesOfUser}).first->second;
    if (share.segments == 0 || segment.bytes > share.bytes) {
        ++unreadable_["limit"];
        return;
    }
    --share.segments;
    share.bytes -= segment.bytes;
    try {
        statistics::Snapshot snapshot = statistics::read_statistics(segment.file);
        if (!wanted_.empty() && !is_called(snapshot, segment.file, wanted_)) {
            return;
        }
        ++matched_;
        Name name{segment.owner, name_of(snapshot)};
        if (snapshot.alive) {
            add_snapshot(out, segment, snapshot);
            seen_[name] = std::max(seen_[name], snapshot.header.began);
            alive_.insert(std::move(name));
        } else if (const auto its = dead_.find(name);
                   its == dead_.end() || its->second.snapshot.header.began < snapshot.header.began) {
            snapshot.tables.clear();  // a user may have many dead runtimes
            dead_.insert_or_assign(std::move(name), Dead{segment, std::move(snapshot)});
        }
    } catch (const Error& error) {
        if (error.code() != std::errc::no_such_file_or_directory) {
            ++unreadable_[reason_of(error)];
        }
    } catch (const std::exception&) {  // no memory
        ++unreadable_["other"];
    }
}

void Exporter::add_snapshot(Exposition& out, const Segment& segment, const statistics::Snapshot& snapshot) {
    Share& share = shares_.at(segment.owner);
    metrics_.add(out, segment_name(segment.file), segment.owner, snapshot, monotonic_now(), share.samples);
    share.samples -= std::min(share.samples, out.samples_of_source());
    left_out_ += out.left_out_of_source();
}

void Exporter::add_dead(Exposition& out) {
    for (const auto& [name, dead] : dead_) {
        const auto seen = seen_.find(name);
        if (!alive_.contains(name) && (seen == seen_.end() || seen->second <= dead.snapshot.header.began)) {
            add_snapshot(out, dead.segment, dead.snapshot);
        }
    }
    std::erase_if(seen_,
                  [this](const auto& each) { return !alive_.contains(each.first) && !dead_.contains(each.first); });
}

std::string Exporter::build() {
    alive_.clear();
    dead_.clear();
    shares_.clear();
    unreadable_ = {{"damaged", 0}, {"limit", 0}, {"other", 0}, {"permission", 0}, {"version", 0}};
    left_out_ = 0;
    matched_ = 0;
    Exposition out;
    const bool is_file = wanted_.find('/') != std::string::npos;
    for (const Segment& segment :
         segments_of(is_file ? std::vector<std::filesystem::path>{wanted_} : statistics::find_statistics())) {
        add_segment(out, segment);
    }
    add_dead(out);
    metrics_.forget_others();
    if (!wanted_.empty() && matched_ == 0) {
        out.begin_source({{"runtime", wanted_}, {"segment", ""}}, 1);
        out.add_gauge("pollcore_up", "Whether the runtime is alive, and its segment can be read", {}, std::uint64_t{0});
    }
    out.begin_source({}, kSamplesOfExporter);
    for (const auto& [reason, count] : unreadable_) {
        out.add_gauge("pollcore_exporter_unreadable_segments", "Segments of this host that this exporter cannot read",
                      {{"reason", reason}}, count);
    }
    out.add_gauge("pollcore_exporter_samples_left_out", "Samples that were left out, because a user has too many", {},
                  std::uint64_t{left_out_});
    out.add_counter("pollcore_exporter_requests", "Requests for metrics", {}, scrapes_);
    return out.text();
}

int serve_prometheus(const Options& options) {
    const ListeningAddress address = parse_listening_address(options.prometheus);
    const UniqueFd stop = stop_signals();
    constexpr int kBacklog = 128;
    UniqueFd socket = listen_at(address, kBacklog);
    if (!address.is_loopback()) {
        fmt::print(stderr, "pollstat: whoever reaches {} may read the metrics: there is no authentication\n",
                   address_of_socket(socket));
    }
    fmt::print("metrics: http://{}/metrics\n", address_of_socket(socket));
    std::fflush(stdout);
    Exporter exporter(options.runtime, {.per_session = options.per_session, .per_queue_pair = options.per_queue_pair});
    MetricsServer server(std::move(socket), [&] { return exporter.text(); }, {});
    server.run(stop);
    return kExitOk;
}

}  // namespace pollcore::stat
