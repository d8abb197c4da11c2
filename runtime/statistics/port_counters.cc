#include "statistics/port_counters.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <tuple>

#include "base/descriptor_reserve.hpp"
#include "base/log.hpp"
#include "base/quiet_thread.hpp"
#include "base/unique_fd.hpp"
#include "pollcore/error.hpp"

namespace pollcore::statistics {
namespace {

constexpr std::uint16_t kNameBytes = 64;
constexpr std::uint32_t kCountersMax = 1024;
constexpr std::chrono::seconds kEvery{1};
constexpr std::chrono::seconds kPatience{1};

/// Returns nothing if the kernel does not answer with a number, because the device is gone or has no such counter.
std::optional<std::uint64_t> value_in(const UniqueFd& file) noexcept {
    std::array<char, 32> text{};
    const ssize_t n = ::pread(file.get(), text.data(), text.size(), 0);
    std::uint64_t value = 0;
    if (n <= 0 || std::from_chars(text.data(), text.data() + n, value).ec != std::errc()) {
        return std::nullopt;
    }
    return value;
}

}  // namespace

struct PortCounters::Shared {
    struct File {
        std::uint32_t device = 0;
        std::string name;
        UniqueFd fd;
    };
    Shared(SegmentWriter& its_segment, std::size_t its_index) : segment(its_segment), index(its_index) {}

    void find(const std::vector<Port>& ports);
    void open_in(const std::filesystem::path& directory, std::uint32_t device);
    /// Returns false when the thread must end.
    [[nodiscard]] bool round();

    SegmentWriter& segment;
    const std::size_t index;
    std::vector<File> files;  // only for the thread
    std::mutex mutex;
    std::condition_variable changed;
    bool stop = false;  // `segment` must not be used any more
    bool ended = false;
};

void PortCounters::Shared::find(const std::vector<Port>& ports) {
    for (const PortCounters::Port& port : ports) {
        open_in(port.directory / "counters", port.device);
        open_in(port.directory / "hw_counters", port.device);
    }
    std::sort(files.begin(), files.end(),
              [](const File& a, const File& b) { return std::tie(a.device, a.name) < std::tie(b.device, b.name); });
}

void PortCounters::Shared::open_in(const std::filesystem::path& directory, std::uint32_t device) {
    std::error_code error;
    for (std::filesystem::directory_iterator each(directory, error), end; !error && each != end;
         each.increment(error)) {
        const std::string name = each->path().filename();
        // `lifespan` is how long the kernel keeps the values of hw_counters.
        if (name == "lifespan" || files.size() == kCountersMax) {
            continue;
        }
        UniqueFd file(::open(each->path().c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
        if (!file.valid()) {
            continue;
        }
        if (is_reserved(file.get())) {
            return;  // the program needs the rest of its descriptors
        }
        files.push_back({device, name, std::move(file)});
    }
}

bool PortCounters::Shared::round() {
    for (std::uint32_t row = 0; row < files.size(); ++row) {
        const File& file = files[row];
        const auto value = value_in(file.fd);
        const std::lock_guard lock(mutex);
        if (stop) {
            return false;
        }
        if (!value) {
            segment.clear(index, row);
            continue;
        }
        auto to = segment.write(index, row);
        to << row + 1 << file.device;
        to.text(file.name, kNameBytes) << *value;
    }
    std::unique_lock lock(mutex);
    return !changed.wait_for(lock, kEvery, [this] { return stop; });
}

TableSpec PortCounters::table() {
    return {
        "port_counter",
        kCountersMax,
        {{"port_counter", Kind::id}, {"device", Kind::id}, {"name", Kind::text, Unit::none, kNameBytes}, {"value"}}};
}

PortCounters::PortCounters(SegmentWriter& segment, std::size_t index, const std::vector<Port>& ports,
                           std::function<void()> begin)
    : shared_(std::make_shared<Shared>(segment, index)) {
    shared_->find(ports);
    // Another thread writes here, and only writes to rows that have memory may come from several threads.
    if (!segment.allocate(index)) {
        throw Error(ENOSPC, "no memory for the counters of ports in the statistics segment");
    }
    // The thread has a share, because it may outlive this object.
    start_quiet_thread([shared = shared_, begin = std::move(begin)] {
        begin();
        while (shared->round()) {
        }
        const std::lock_guard lock(shared->mutex);
        shared->ended = true;
        shared->changed.notify_all();
    }).detach();
}

PortCounters::~PortCounters() {
    std::unique_lock lock(shared_->mutex);
    shared_->stop = true;
    shared_->changed.notify_all();
    if (!shared_->changed.wait_for(lock, kPatience, [this] { return shared_->ended; })) {
        log_warning("a counter of a port does not answer: the thread that waits for it ends later");
    }
}

}  // namespace pollcore::statistics
