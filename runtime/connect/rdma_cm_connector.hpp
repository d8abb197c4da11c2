// Connections over rdma_cm (rdma_cm(7)), for verbs devices.
//
// librdmacm opens a context of its own for each device (H13), so it never sees our QPs. It carries their numbers, and
// we make the changes of state that it describes, through ConnectingQp::modify. An address that it resolves must lie on
// our device and port; otherwise it is refused with an error that names both devices.
//
// The path attributes over rdma_cm:
//   timeout, retry_count, rnr_retry, min_rnr_timer:
//       set on our own QP. The peer is told the first three; a plain rdma_cm program then uses them for its own QP.
//   traffic_class:
//       the caller's holds for both directions. The answering side's, unless 0, replaces it for its own direction.
//   max_rd_atomic, max_dest_rd_atomic:
//       the least of this value, the device's limit, and the peer's limit.
//   mtu:
//       both ends use the caller's. The caller's must be its port's, or 0. The answering side's must be the caller's,
//       or 0.
//
// A receive may complete at the answering side before `established`: its QP is in RTS before the caller hears that the
// request was accepted, and the caller may send as soon as it hears so. If that first message comes before the caller's
// last handshake message, the device raises IBV_EVENT_COMM_EST; see communication_established().
//
// After `failed` and `disconnected` the connection is forgotten.
//
// Thread safety: see Connector.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <rdma/rdma_cma.h>

#include "base/unique_fd.hpp"
#include "connect/connector.hpp"
#include "connect/rdma_cm_address.hpp"

namespace pollcore {

class RdmaCmConnector final : public Connector {
public:
    explicit RdmaCmConnector(Device& device);
    ~RdmaCmConnector() override;

    [[nodiscard]] ListenerId listen(const std::string& address) override;
    [[nodiscard]] std::string address_of(ListenerId listener) const override;
    void stop_listening(ListenerId listener) noexcept override;

    [[nodiscard]] ConnectionId connect(const std::string& address, ConnectingQp qp, const PathAttributes& path,
                                       std::span<const std::byte> private_data) override;
    void accept(ConnectionId request, ConnectingQp qp, const PathAttributes& path,
                std::span<const std::byte> private_data) override;
    void reject(ConnectionId request, std::span<const std::byte> private_data) override;
    void disconnect(ConnectionId connection) override;
    void forget(ConnectionId connection) noexcept override;
    void communication_established(std::uint32_t qp_num) override;
    void look_for_withdrawn_requests() override;

    [[nodiscard]] int fd() const noexcept override { return epoll_.get(); }
    [[nodiscard]] std::optional<ConnectEvent> next_event() override;

private:
    struct ChannelCloser {
        void operator()(rdma_event_channel* channel) const noexcept { rdma_destroy_event_channel(channel); }
    };
    struct IdDestroyer {
        // rdma_destroy_id waits for events of the id that were taken and not acknowledged. There are none, since
        // next_event() acknowledges each event before it acts on it.
        void operator()(rdma_cm_id* id) const noexcept { (void)rdma_destroy_id(id); }
    };
    using UniqueId = std::unique_ptr<rdma_cm_id, IdDestroyer>;

    enum class State {
        resolving_address,
        resolving_route,
        connecting,
        requested,
        withdrawn,
        finding_neighbour,
        accepting,
        established
    };

    struct Connection {
        ConnectionId number = 0;
        State state{};
        UniqueId id;
        std::string peer;  ///< its address, for messages
        ConnectingQp qp;
        PathAttributes path;
        std::vector<std::byte> frame;     ///< private data as it goes out
        std::uint8_t rd_atomic = 0;       ///< agreed: reads and atomics that we may have in flight
        std::uint8_t dest_rd_atomic = 0;  ///< agreed: reads and atomics of the peer that we serve
        bool disconnect_called = false;
        bool answering = false;  ///< the peer asked for the connection
        UniqueId neighbour;      ///< for the look-up of the peer's neighbour entry
        // Only at the caller:
        CmAddress destination;
        std::vector<std::byte> answer;  ///< the peer's private data
        FlowBlock peer_flow{};
        std::optional<Error> first_failure;   ///< of the address resolved as the routing table says
        std::vector<CmAddress> sources_left;  ///< our own addresses, to be tried as the source after a failure
    };

    /// A copy of an event of librdmacm, so that the event can be acknowledged before anything is done about it.
    struct CmEvent {
        rdma_cm_event_type type{};
        int status = 0;
        rdma_cm_id* id = nullptr;
        std::uint64_t number = 0;  ///< of the connection; of a request: of the listener
        std::vector<std::byte> private_data;
        std::uint8_t responder_resources = 0;
        std::uint8_t initiator_depth = 0;
    };

    // rdma_cm_connector.cc: calls from outside
    [[nodiscard]] UniqueId create_id(std::uint64_t number);
    [[nodiscard]] Connection& find_request(ConnectionId request, const char* what);
    void check_path(const PathAttributes& path);
    void check_type(const ConnectingQp& qp) const;
    void push(ConnectEvent event);
    /// "RDMA device other port 1", or empty when the id is on our device and port.
    [[nodiscard]] std::string foreign_device(const rdma_cm_id& id) const;
    [[nodiscard]] std::string own_device() const;

    // rdma_cm_steps.cc: the way of a QP to RTS. If a step throws, the connection fails.
    /// Begins to resolve the address. Returns 0, or an errno value.
    [[nodiscard]] int resolve_address(Connection& connection, CmAddress* source);
    /// Goes on with the next source, or throws the first failure.
    void address_failed(Connection& connection, Error failure);
    void address_resolved(Connection& connection);
    void send_request(Connection& connection);
    void agree_as_answerer(Connection& connection);
    /// Begins to look the peer's neighbour entry up. False when the kernel needs none to move the QP.
    [[nodiscard]] bool find_neighbour(Connection& connection);
    void move_and_tell(Connection& connection);
    [[nodiscard]] rdma_conn_param conn_param(const Connection& connection) const;
    /// The attributes that the kernel wants for that state of the QP, and their mask.
    [[nodiscard]] std::pair<ibv_qp_attr, int> attributes_for(const Connection& connection, ibv_qp_state state) const;
    void move_to_rtr_and_rts(Connection& connection);

    // rdma_cm_events.cc
    [[nodiscard]] std::optional<CmEvent> take();
    [[nodiscard]] std::optional<ConnectEvent> handle(CmEvent& event);
    [[nodiscard]] std::optional<ConnectEvent> handle_of_connection(Connection& connection, CmEvent& event);
    [[nodiscard]] std::optional<ConnectEvent> handle_request(CmEvent& event);
    [[nodiscard]] std::optional<ConnectEvent> handle_of_listener(ListenerId listener, const CmEvent& event);
    [[nodiscard]] std::optional<ConnectEvent> handle_response(Connection& connection, const CmEvent& event);
    /// On both sides, once the QP's attributes are agreed: finds the peer's neighbour entry, then moves the QP and
    /// tells the peer. Returns the event that ends the attempt, if it has ended.
    [[nodiscard]] std::optional<ConnectEvent> begin_moving(Connection& connection);
    [[nodiscard]] std::optional<ConnectEvent> move(Connection& connection);
    [[nodiscard]] ConnectEvent handle_rejection(Connection& connection, const CmEvent& event);
    /// Forgets the connection, and returns the event that ends it.
    [[nodiscard]] ConnectEvent end(Connection& connection, ConnectEvent::Kind kind, int error, std::string text);
    /// Runs a step; when it throws, the connection has failed.
    template <class Step>
    [[nodiscard]] std::optional<ConnectEvent> attempt(Connection& connection, Step&& step) {
        try {
            step();
            return std::nullopt;
        } catch (const Error& error) {
            return end(connection, ConnectEvent::Kind::failed, error.code().value(), error.what());
        } catch (const std::bad_alloc&) {
            return end(connection, ConnectEvent::Kind::failed, ENOMEM, {});
        }
    }

    Device& device_;
    std::unique_ptr<rdma_event_channel, ChannelCloser> channel_;
    UniqueFd pending_fd_;            ///< readable while pending_ holds something
    UniqueFd epoll_;                 ///< over the channel and pending_fd_; returned by fd()
    std::uint64_t last_number_ = 0;  ///< one sequence for connections and listeners: a number belongs to one of them
    std::unordered_map<ListenerId, UniqueId> listeners_;
    std::unordered_map<ConnectionId, Connection> connections_;
    /// Requests that wait for an answer, in the order in which they are looked at. Answered ones are dropped at the
    /// look.
    std::deque<ConnectionId> requests_;
    bool moved_ = false;                ///< a QP was moved since this was last cleared
    std::deque<ConnectEvent> pending_;  ///< events that calls made, not the kernel
};

}  // namespace pollcore
