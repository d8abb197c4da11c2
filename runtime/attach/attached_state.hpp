// The attached process's side of attaching: a ControlSide (session/control_side.hpp) that asks the daemon over a
// socket.
//
// Thread safety: any thread may call all functions. Each call waits for the answer to its own request. A reader thread
// receives all answers.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "attach/moved_memory.hpp"
#include "attach/own_memory.hpp"
#include "attach/packet_socket.hpp"
#include "attach/pause.hpp"
#include "attach/shared_memory.hpp"
#include "attach/wire.hpp"
#include "pollcore/attach.hpp"
#include "session/control_side.hpp"

namespace pollcore {

class AttachedState final : public ControlSide {
public:
    explicit AttachedState(const AttachOptions& options);
    ~AttachedState() override;

    bool stop() override;
    [[nodiscard]] bool lost() const noexcept { return lost_.load(std::memory_order_acquire); }
    [[nodiscard]] std::uint32_t client() const noexcept { return attached_.client; }

    OpenedSession open_session(const SessionOptions& options) override;
    void close_session(std::uint32_t session_id) noexcept override;
    void release_session(std::uint32_t session_id) noexcept override;

    QpHandle create_qp(const QpSpec& spec) override;
    bool close_qp(QpHandle handle) override;
    std::pair<QpHandle, bool> reset(QpHandle handle) override;
    QpInfo info(QpHandle handle) override;
    void connect(QpHandle handle, const QpInfo& peer, const PathAttributes& path) override;
    std::vector<std::byte> connect(QpHandle handle, const std::string& address, const ConnectOptions& options) override;
    void modify_qp(QpHandle handle, const QpAttributes& attributes) override;
    QpQuery query_qp(QpHandle handle) override;
    void begin_connect(QpHandle handle, const std::string& address, const ConnectOptions& options) override;
    void begin_accept(std::uint32_t device, std::uint64_t request, QpHandle handle, const FlowBlock& flow,
                      const ConnectOptions& options) override;
    void begin_reset(QpHandle handle, std::chrono::milliseconds timeout) override;
    void begin_close(QpHandle handle, std::chrono::milliseconds timeout) override;
    void cancel(QpHandle handle) override;
    bool abandon_qp(QpHandle handle) override;
    void disconnect(QpHandle handle) override;
    bool disconnected(QpHandle handle) override;
    std::uint32_t qp_num(QpHandle handle) override;
    std::optional<RnrCounts> rnr_counts(QpHandle handle) override;
    std::optional<RnrCounts> rnr_counts(const std::string& device) override;

    DeviceAttributes query_device(const std::string& device) override;
    PortAttributes query_port(const std::string& device) override;
    std::vector<GidAttributes> gids(const std::string& device) override;
    std::uint16_t query_pkey(std::uint32_t index, const std::string& device) override;

    OpenedListener listen(const std::string& address, const std::string& device, PrivateDataForm form) override;
    void stop_listening(std::uint32_t device, std::uint64_t listener) noexcept override;
    std::optional<IncomingConnection> next_request(std::uint32_t device, std::uint64_t listener,
                                                   std::chrono::milliseconds timeout) override;
    void accept(std::uint32_t device, std::uint64_t request, QpHandle handle, const FlowBlock& flow,
                const ConnectOptions& options) override;
    void reject(std::uint32_t device, std::uint64_t request,
                const std::vector<std::byte>& private_data) noexcept override;

    PdId create_pd(const std::string& device) override;
    void release_pd(PdId pd) noexcept override;
    RegionInfo allocate(std::size_t bytes, Access access, const std::string& device, PdId pd) override;
    RegionInfo register_dmabuf(const DmabufRange& range, std::uint64_t iova, Access access, const std::string& device,
                               PdId pd) override;
    RegionInfo register_memory(void* data, std::size_t bytes, std::uint64_t iova, Access access,
                               const std::string& device, PdId pd) override;
    void deregister(std::uint64_t region) override;
    MwHandle create_window(std::uint32_t session, WindowType type, const std::string& device, PdId pd) override;
    std::uint32_t window_rkey(MwHandle handle) override;
    void deallocate(MwHandle handle) override;

    AhHandle create_ah(const QpInfo& peer, const PathAttributes& path, const std::string& device, PdId pd) override;
    AhHandle create_ah(const AddressAttributes& address, const std::string& device, PdId pd) override;
    AhHandle create_ah(const WideCompletion& received, std::span<const std::byte, kGrhBytes> grh,
                       const std::string& device, PdId pd) override;
    void destroy_ah(AhHandle handle) override;

    SrqHandle create_srq(const SrqSpec& spec) override;
    void close_srq(SrqHandle handle) override;
    void arm_limit(SrqHandle handle, std::uint32_t limit) override;
    std::uint32_t limit(SrqHandle handle) override;

    PoolInfo create_pool(const PoolSpec& spec) override;
    void close_pool(PoolHandle handle, std::uint64_t region) override;
    std::vector<HeldBuffer> held_buffers(PoolHandle handle) override;

    ApplicationEvents& events() noexcept override { return events_; }
    RuntimeReport report() override;
    std::size_t worker_count() noexcept override { return attached_.workers; }
    const WorkerCounters& worker_counters(std::size_t worker) override;
    const ControlCounters& control_counters() override;
    statistics::Snapshot statistics() override;

private:
    struct Question {
        bool answered = false;
        wire::Packet answer;
    };
    struct MappedSession {
        SharedMemory memory;
        std::shared_ptr<InFlightLog> log;
        UniqueFd bell;         // a socket by which the worker wakes this process
        UniqueFd worker_bell;  // an eventfd that wakes the worker
        std::uint32_t wide = 0;
    };
    struct MappedRegion {
        // One of these two is shared by all regions in the same memory: it came from allocate(), or is the program's.
        std::shared_ptr<HostMemory> memory;
        std::shared_ptr<MovedMemory> moved;
        std::byte* data = nullptr;
        std::size_t size = 0;
    };

    /// Sends `body` and waits for the answer. Throws the daemon's error, or the reason why there is no answer, such as
    /// Error(ECONNRESET) when the daemon is gone.
    template <class Body>
    typename Body::Answered ask(const Body& body, std::span<const int> descriptors = {},
                                std::vector<UniqueFd>* back = nullptr);
    /// For requests that end an object. Like ask(), but logs a failure and does not throw. Logs nothing if the daemon
    /// is gone, because the object has ended with the daemon.
    template <class Body>
    void tell(const Body& body) noexcept;
    [[nodiscard]] wire::Packet exchange(std::uint64_t id, std::span<const std::byte> packet,
                                        std::span<const int> descriptors, std::chrono::milliseconds within);
    [[nodiscard]] std::uint64_t next_id();
    void begin(const AttachOptions& options);
    void share_contexts();
    [[nodiscard]] bool is_key_in_use(const OwnMemory::Key& key);
    /// The device's name. An empty name means the only device, whose name stays empty if there are several.
    [[nodiscard]] const std::string& full_name(const std::string& device) const noexcept;
    void end_reader() noexcept;
    void read_answers() noexcept;
    void take(wire::Packet&& packet);
    void take_events(const wire::Packet& packet);
    void ask_for_events() noexcept;
    void lose() noexcept;
    void bury() noexcept;
    /// `fd` is the memfd of the region, or null if `request` names a parent.
    RegionInfo add_region(const wire::RegisterMemory& request, MappedRegion region, const int* fd);
    RegionInfo register_moved_memory(wire::RegisterMemory request, std::byte* data);
    [[nodiscard]] bool is_moved_memory(std::uint64_t region);
    void require_within_quota(std::size_t bytes) const;

    UniqueFd socket_;
    UniqueFd daemon_;  // the daemon's pidfd
    const std::chrono::milliseconds answer_within_;
    UniqueFd wake_;                      // wakes the reader
    std::optional<Pause> reader_pause_;  // if AttachOptions::own_memory is set
    wire::Attached attached_;
    HostMemory pool_counters_;
    std::string only_device_;  // empty if there are several, or if the process has no contexts of its own
    OwnMemory own_memory_;
    ApplicationEvents events_;
    std::vector<std::unique_ptr<WorkerCounters>> worker_counters_;
    ControlCounters control_counters_;
    std::atomic<bool> lost_{false};

    std::mutex mutex_;
    std::condition_variable changed_;
    std::uint64_t next_id_ = 1;
    bool stopped_ = false;
    std::string why_ending_;  // the daemon has said that it ends the attachment, and why
    bool buried_ = false;     // the daemon is gone, and bury() has run
    std::map<std::uint64_t, Question*> questions_;
    bool events_unasked_ = false;  // the socket had no room for the request for events of connections
    bool welcomed_ = false;
    // The daemon's answer, if the daemon refused this process before the process sent its first request.
    std::optional<wire::Packet> early_;
    std::map<std::uint32_t, MappedSession> sessions_;
    std::map<std::uint64_t, MappedRegion> regions_;
    std::mutex moving_;  // held before mutex_, while a region of the program's own memory begins or ends
    std::atomic<bool> ending_{false};
    std::thread reader_;
};

}  // namespace pollcore
